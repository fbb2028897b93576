// Fields of forms, tabs, and texts as lists.
import type { ComponentChildren } from 'preact'
import { useId, useState } from 'preact/hooks'
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
  const id = useId()
  const own = { id, value, required, placeholder, spellcheck: false, 'aria-describedby': hint ? `${id}-hint` : undefined }
  const onInput = (event: { currentTarget: { value: string } }) => set(event.currentTarget.value)
  return (
    <Field id={id} label={label} hint={hint}>
      {long ? (
        <textarea rows={10} class="code-field" {...own} onInput={onInput} />
      ) : secret ? (
        <input type="password" {...own} onInput={onInput} autocomplete="new-password" />
      ) : (
        <input type="text" {...own} onInput={onInput} autocomplete="off" />
      )}
    </Field>
  )
}

export function ChoiceField({ label, value, choices, set, hint }: { label: string; value: string; choices: [string, string][]; set: (value: string) => void; hint?: ComponentChildren }) {
  const id = useId()
  return (
    <Field id={id} label={label} hint={hint}>
      <select id={id} value={value} aria-describedby={hint ? `${id}-hint` : undefined} onChange={(event) => set(event.currentTarget.value)}>
        {choices.map(([one, text]) => (
          <option key={one} value={one}>
            {text}
          </option>
        ))}
      </select>
    </Field>
  )
}

function Field({ id, label, hint, children }: { id: string; label: string; hint?: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children}
      {hint && (
        <span class="hint" id={`${id}-hint`}>
          {hint}
        </span>
      )}
    </div>
  )
}

interface FilterInputProps {
  value: string | undefined
  set: (value: string) => void
  placeholder: string
  type?: 'search' | 'text'
  size?: number
  list?: string
  'data-search'?: boolean
}

/** Set when somebody has finished with it. A page that is drawn anew meanwhile keeps what was typed. */
export function FilterInput({ value, set, type = 'text', ...rest }: FilterInputProps) {
  const [typed, setTyped] = useState<string>()
  return (
    <input {...rest} type={type} value={typed ?? value} onInput={(event) => setTyped(event.currentTarget.value)} onBlur={() => setTyped(undefined)}
      onChange={(event) => {
        setTyped(undefined)
        set(event.currentTarget.value.trim())
      }} />
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
