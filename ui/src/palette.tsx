// Keys: the palette that finds pages, DAGs, jobs and datasets, and the list of keys.
import { signal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { useData } from './data'
import { Icon, type IconName } from './icons'
import { pagesOfReader } from './pages'
import { address, go } from './router'
import { switchTheme } from './theme'
import type { GraphResponse } from './types'

export const overlay = signal<'palette' | 'help' | undefined>(undefined)

let first: { key: string; at: number } | undefined

export function onKey(event: KeyboardEvent): void {
  const target = event.composedPath()[0] as HTMLElement // the editor of queries is in a shadow root
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
    event.preventDefault()
    overlay.value = overlay.value === 'palette' ? undefined : 'palette'
    return
  }
  if (event.key === 'Escape' && overlay.value) {
    event.preventDefault()
    overlay.value = undefined
    return
  }
  const typing = target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return
  if (event.key === '?') {
    event.preventDefault()
    overlay.value = 'help'
  } else if (event.key === '/') {
    const field = document.querySelector<HTMLInputElement>('[data-search]')
    if (field) {
      event.preventDefault()
      field.focus()
      field.select?.()
    }
  } else if (event.key === 'g') {
    first = { key: 'g', at: Date.now() }
  } else if (first && Date.now() - first.at < 1500) {
    first = undefined
    const page = pagesOfReader().find((one) => one.key === event.key)
    if (page) go(page.path)
  } else {
    const near = target.closest('.graph') ?? document // of two graphs on a page, the one that somebody is in
    near.querySelector<HTMLButtonElement>(`button[data-keys~="${CSS.escape(event.key)}"]`)?.click()
  }
}

interface Found {
  icon: IconName
  name: string
  kind: string
  run: () => void
}

const MOST_SHOWN = 12

/** The letters in their order, as near to each other as possible; undefined: not all are there. */
export function score(text: string, wanted: string): number | undefined {
  const name = text.toLowerCase()
  const whole = name.indexOf(wanted)
  if (whole >= 0) return whole + (name.length - wanted.length) / 100
  let at = -1
  let cost = 50
  for (const letter of wanted) {
    const next = name.indexOf(letter, at + 1)
    if (next < 0) return undefined
    cost += next - at - 1
    at = next
  }
  return cost
}

export function Palette() {
  const [text, setText] = useState('')
  const [chosen, setChosen] = useState(0)
  const { data } = useData<GraphResponse>('/api/v1/graph')
  const all = useMemo(() => everything(data), [data])
  const wanted = text.trim().toLowerCase()
  const found = useMemo(() => {
    if (!wanted) return all.slice(0, MOST_SHOWN)
    return all
      .map((one) => ({ one, cost: score(one.name, wanted) }))
      .filter((each): each is { one: Found; cost: number } => each.cost !== undefined)
      .sort((a, b) => a.cost - b.cost)
      .slice(0, MOST_SHOWN)
      .map((each) => each.one)
  }, [all, wanted])
  const at = Math.min(chosen, found.length - 1)
  const choose = (one?: Found) => {
    if (!one) return
    overlay.value = undefined
    one.run()
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'ArrowDown') setChosen(Math.min(at + 1, found.length - 1))
    else if (event.key === 'ArrowUp') setChosen(Math.max(at - 1, 0))
    else if (event.key === 'Enter') choose(found[at])
    else return
    event.preventDefault()
  }
  return (
    <Overlay label="Go to">
      <div class="palette-field">
        <Icon name="search" />
        <input role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant={found.length ? `palette-${at}` : undefined}
          aria-label="Page, DAG, job, dataset or task id" placeholder="Page, DAG, job, dataset or task id" value={text} autocomplete="off" spellcheck={false}
          onInput={(event) => {
            setText(event.currentTarget.value)
            setChosen(0)
          }}
          onKeyDown={onKeyDown} />
      </div>
      <ul id="palette-list" role="listbox" aria-label="Found">
        {TASK_ID.test(text.trim()) && (
          <li role="option" id="palette-0" aria-selected="true" onClick={() => choose(task(text.trim()))}>
            <Icon name="tasks" />
            {text.trim()}
            <span class="muted">Task</span>
          </li>
        )}
        {found.map((one, n) => (
          <li key={`${one.kind} ${one.name}`} id={`palette-${n}`} role="option" aria-selected={n === at} onClick={() => choose(one)}
            onMouseMove={() => setChosen(n)}>
            <Icon name={one.icon} />
            {one.name}
            <span class="muted">{one.kind}</span>
          </li>
        ))}
      </ul>
      {found.length === 0 && !TASK_ID.test(text.trim()) && <p class="palette-none muted">Nothing is called like that.</p>}
    </Overlay>
  )
}

const TASK_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

const task = (id: string): Found => ({ icon: 'tasks', name: id, kind: 'Task', run: () => go(address.task(id)) })

function everything(graph?: GraphResponse): Found[] {
  const dags = [...new Set(graph?.jobs.map((job) => job.dag) ?? [])]
  return [
    ...pagesOfReader().map((page): Found => ({ icon: page.icon, name: page.name, kind: 'Page', run: () => go(page.path) })),
    { icon: 'sun', name: 'Switch colours', kind: 'Command', run: switchTheme },
    { icon: 'help', name: 'Keys', kind: 'Command', run: () => (overlay.value = 'help') },
    ...dags.map((dag): Found => ({ icon: 'graph', name: dag, kind: 'DAG', run: () => go(address.graph({ dag })) })),
    ...(graph?.jobs ?? []).map(
      (job): Found => ({
        icon: 'job',
        name: `${job.dag}/${job.job}`,
        kind: 'Job',
        run: () => go(address.graph({ dag: job.dag, at: `job:${job.dag}/${job.job}` })),
      }),
    ),
    ...(graph?.datasets ?? []).map(
      (one): Found => ({
        icon: 'dataset',
        name: one.dataset,
        kind: 'Dataset',
        run: () => go(address.dataset(one.dataset)),
      }),
    ),
  ]
}

const KEYS: [string[], string][] = [
  [['Ctrl', 'K'], 'Find a page, a DAG, a job, a dataset, a task'],
  [['/'], 'Search within the page'],
  [['↑', '↓', '←', '→'], 'In the graph: go to the next node'],
  [['+', '−', '0'], 'In the graph: larger, smaller, all of it'],
  [['Enter'], 'In the graph: show what a node is doing'],
  [['?'], 'This list'],
  [['Esc'], 'Close what is open'],
]

export function Help() {
  const keys: [string[], string][] = [...KEYS, ...pagesOfReader().map((page): [string[], string] => [['g', page.key], `Go to ${page.name}`])]
  return (
    <Overlay label="Keys">
      <h2>Keys</h2>
      <dl class="keys">
        {keys.map(([key, meaning]) => (
          <div key={meaning}>
            <dt>
              {key.map((one) => (
                <kbd key={one}>{one}</kbd>
              ))}
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <p class="muted small">
        Everything here can be done with the command <code>traceplane</code> too. Times are in your zone; hover over one for the exact time.
      </p>
    </Overlay>
  )
}

function Overlay({ label, children }: { label: string; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    const shown = dialog.current!
    shown.showModal() // keeps the focus inside, and gives it back afterwards
    shown.querySelector('input')?.focus()
    return () => shown.close()
  }, [])
  const close = () => (overlay.value = undefined)
  return (
    <dialog ref={dialog} class="overlay" aria-label={label} onCancel={close} onClick={(event) => event.target === dialog.current && close()}>
      <div class="overlay-body" tabIndex={0}>{children}</div>
    </dialog>
  )
}
