// What pages are made of.
import { signal } from '@preact/signals'
import type { ComponentChildren, JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import type { ApiError } from './api'
import { ago, exact, isKept, nameOfDataset } from './format'
import { Icon, type IconName } from './icons'
import { address, go } from './router'

type LinkProps = JSX.IntrinsicElements['a'] & { href: string }

/** A link within the UI. With a modifier key it opens a tab, as links do. */
export function A({ href, onClick, ...rest }: LinkProps) {
  const follow = (event: MouseEvent) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return
    event.preventDefault()
    go(href)
  }
  return <a href={href} onClick={follow} {...rest} />
}

/** A link to a dataset. One that the dispatcher keeps for a job (`shop.enrich#scopes`) has no page. */
export function DatasetName({ of }: { of: string }) {
  return isKept(of) ? <span class="muted">{nameOfDataset(of)}</span> : <A href={address.dataset(of)}>{of}</A>
}

type ButtonProps = JSX.IntrinsicElements['button'] & { icon?: IconName; look?: 'plain' | 'primary' | 'danger' | 'ghost' }

export function Button({ icon, look = 'plain', children, class: more, ...rest }: ButtonProps) {
  return (
    <button type="button" class={`button ${look} ${more ?? ''}`} {...rest}>
      {icon && <Icon name={icon} />}
      {children}
    </button>
  )
}

const STATES: Record<string, { text: string; icon: IconName }> = {
  queued: { text: 'Queued', icon: 'queued' },
  dispatched: { text: 'Dispatched', icon: 'queued' },
  running: { text: 'Running', icon: 'running' },
  completed: { text: 'Completed', icon: 'check' },
  dead: { text: 'Dead', icon: 'cross' },
  canceled: { text: 'Canceled', icon: 'minus' },
  paused: { text: 'Paused', icon: 'pause' },
  held: { text: 'Held', icon: 'held' },
  retrying: { text: 'Retrying', icon: 'retry' },
  active: { text: 'Serving', icon: 'check' },
  building: { text: 'Building', icon: 'running' },
  retired: { text: 'Retired', icon: 'minus' },
  aborted: { text: 'Aborted', icon: 'cross' },
  collected: { text: 'Collected', icon: 'minus' },
  open: { text: 'Open', icon: 'cross' },
}

/** A state by colour, shape and word: no reader depends on one of them. */
export function State({ of, note, text }: { of: string; note?: string; text?: string }) {
  const known = STATES[of] ?? { text: of, icon: 'queued' as IconName }
  return (
    <span class={`state state-${of}`}>
      <Icon name={known.icon} />
      {text ?? known.text}
      {note && <span class="note">{note}</span>}
    </span>
  )
}

const now = signal(Date.now())
setInterval(() => {
  if (!document.hidden) now.value = Date.now()
}, 5_000)

/** How long ago, with the exact time of the reader's zone on hover. */
export function Time({ at }: { at?: string | null }) {
  if (!at) return <span class="muted">—</span>
  const date = new Date(at)
  return (
    <time dateTime={at} title={exact(date)}>
      {ago(date, now.value)}
    </time>
  )
}

export function Problem({ error, retry }: { error: ApiError; retry?: () => void }) {
  return (
    <div class="problem" role="alert">
      <Icon name="cross" />
      <div>
        <strong>{withCode(sentence(error.message))}</strong>
        {error.value !== undefined && error.value !== '' && <code>{error.value}</code>}
        {error.nextStep && <p>{withCode(sentence(error.nextStep))}</p>}
        {error.problems.length > 0 && (
          <ul class="reasons">
            {error.problems.map((one, n) => (
              <li key={n}>
                <code>{one.line}:{one.column}</code> {withCode(sentence(one.message))}
                {one.suggestion && <span class="muted"> {withCode(sentence(one.suggestion))}</span>} <span class="muted small">{one.code}</span>
              </li>
            ))}
          </ul>
        )}
        <p class="muted small">{error.code}</p>
      </div>
      {retry && (
        <Button icon="retry" onClick={retry}>
          Try again
        </Button>
      )}
    </div>
  )
}

/** What to do next where there is nothing to see. */
export function Empty({ icon, title, children }: { icon: IconName; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <Icon name={icon} />
      <h2>{title}</h2>
      <div class="empty-text">{children}</div>
    </div>
  )
}

export function Loading({ lines = 6 }: { lines?: number }) {
  return (
    <div class="loading" aria-busy="true">
      <span class="hidden">Loading</span>
      {Array.from({ length: lines }, (_, n) => (
        <div class="bone" key={n} />
      ))}
    </div>
  )
}

export function Copy({ text, children }: { text: string; children?: ComponentChildren }) {
  const [done, setDone] = useState(false)
  useEffect(() => {
    if (!done) return
    const timer = setTimeout(() => setDone(false), 1500)
    return () => clearTimeout(timer)
  }, [done])
  const copy = () => void navigator.clipboard?.writeText(text).then(() => setDone(true))
  return (
    <button type="button" class="copy" onClick={copy} title={`Copy ${text}`} aria-label={`Copy ${text}`}>
      {children ?? <code>{text}</code>}
      <Icon name={done ? 'check' : 'copy'} />
    </button>
  )
}

export function Page({ title, side, children }: { title: ComponentChildren; side?: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class="page">
      <header class="page-head">
        <h1>{title}</h1>
        <div class="page-side">{side}</div>
      </header>
      {children}
    </div>
  )
}

export function Facts({ children }: { children: ComponentChildren }) {
  return <dl class="facts">{children}</dl>
}

export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  )
}

/** Commands stand between backticks where the terminal shows the same text. */
export const withCode = (text: string): ComponentChildren => text.split('`').map((part, n) => (n % 2 ? <code key={n}>{part}</code> : part))

export function sentence(text: string): string {
  const begun = text.charAt(0).toUpperCase() + text.slice(1)
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`
}

// Messages that pass ---------------------------------------------------------------------------------

interface Toast {
  id: number
  text: string
  bad: boolean
}

const toasts = signal<Toast[]>([])
let lastToast = 0

export function toast(text: string, bad = false): void {
  const id = ++lastToast
  toasts.value = [...toasts.value.slice(-3), { id, text, bad }]
  setTimeout(() => dismiss(id), bad ? 12_000 : 5_000)
}

const dismiss = (id: number) => {
  toasts.value = toasts.value.filter((one) => one.id !== id)
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((one) => (
        <div key={one.id} class={one.bad ? 'toast bad' : 'toast'}>
          <Icon name={one.bad ? 'cross' : 'check'} />
          <span>{one.text}</span>
          <button type="button" onClick={() => dismiss(one.id)} aria-label="Dismiss">
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  )
}
