// Fields of forms, tabs, and texts as lists.
import type { ComponentChildren } from 'preact'
import { place, withQuery } from './router'
import { A } from './parts'

interface TextProps {
  label: string
  value: string
  set: (value: string) => void
  hint?: ComponentChildren
  secret?: boolean
  required?: boolean
  long?: boolean
  placeholder?: string
}

export function TextField({ label, value, set, hint, secret, required, long, placeholder }: TextProps) {
  const own = { value, required, placeholder, spellcheck: false, onInput: (event: { currentTarget: HTMLInputElement }) => set(event.currentTarget.value) }
  return (
    <label class="field">
      <span>{label}</span>
      {long ? (
        <textarea rows={10} class="code-field" value={value} required={required} spellcheck={false} placeholder={placeholder} onInput={(event) => set(event.currentTarget.value)} />
      ) : secret ? (
        <input type="password" {...own} autocomplete="new-password" />
      ) : (
        <input type="text" {...own} autocomplete="off" />
      )}
      {hint && <span class="hint">{hint}</span>}
    </label>
  )
}

export function ChoiceField({ label, value, choices, set, hint }: { label: string; value: string; choices: [string, string][]; set: (value: string) => void; hint?: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}</span>
      <select value={value} onChange={(event) => set(event.currentTarget.value)}>
        {choices.map(([one, text]) => (
          <option key={one} value={one}>
            {text}
          </option>
        ))}
      </select>
      {hint && <span class="hint">{hint}</span>}
    </label>
  )
}

/** Parts of a page, one of which is shown; which one stands in the address. */
export function Tabs({ name = 'show', tabs }: { name?: string; tabs: { id: string; title: string; count?: number }[] }) {
  const chosen = place.value.query.get(name) ?? tabs[0]!.id
  return (
    <nav class="tabs" aria-label="Parts of the page">
      {tabs.map((tab, n) => (
        <A key={tab.id} href={withQuery({ [name]: n === 0 ? undefined : tab.id, ...others })} aria-current={tab.id === chosen ? 'true' : undefined}>
          {tab.title}
          {(tab.count ?? 0) > 0 && <span class="tab-count">{tab.count}</span>}
        </A>
      ))}
    </nav>
  )
}

// Filters of one part mean nothing in another.
const others = { state: undefined, channel: undefined, dag: undefined, alert: undefined }

export const tabOf = (fallback: string, name = 'show'): string => place.value.query.get(name) ?? fallback

export const listOf = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean)
