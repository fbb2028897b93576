// The editor, and the states that a query is asked of.
import { useEffect, useId, useRef, useState } from 'preact/hooks'
import { get, withParameters } from '../api'
import { useData } from '../data'
import type { Editor } from '../editor'
import { Loading } from '../parts'
import type { OverviewResponse, DatasetDetail, VersionsResponse } from '../types'
import { type AsOf, versionOf } from './asked'

const columnsOf = new Map<string, Promise<{ name: string; type: string }[]>>()

function columns(dataset: string): Promise<{ name: string; type: string }[]> {
  let asked = columnsOf.get(dataset)
  if (!asked) {
    asked = get<DatasetDetail>(`/api/v1/datasets/${encodeURIComponent(dataset)}`)
      .then((detail) => detail.columns)
      .catch(() => [])
    columnsOf.set(dataset, asked)
    setTimeout(() => columnsOf.delete(dataset), 60_000)
  }
  return asked
}

/** `sql` is what it begins with; from then on the text is the editor's, and `set` is told of it. */
export function SqlField({ sql, set, run }: { sql: string; set: (sql: string) => void; run: () => void }) {
  const host = useRef<HTMLDivElement>(null)
  const editor = useRef<Editor | null>(null)
  const [state, setState] = useState<'loading' | 'there' | 'failed'>('loading')
  const all = useData<OverviewResponse>('/api/v1/overview')
  const latest = useRef({ sql, set, run, datasets: [] as string[] })
  latest.current = { sql, set, run, datasets: all.data?.dags.flatMap((one) => one.datasets ?? []) ?? [] }
  useEffect(() => {
    let over = false
    import('../editor')
      .then(({ openEditor }) => {
        if (over || !host.current) return
        const { current } = latest
        editor.current = openEditor(host.current, current.sql, { datasets: () => latest.current.datasets, columns }, (text) => latest.current.set(text), () => latest.current.run())
        setState('there')
      })
      .catch(() => setState('failed'))
    return () => {
      over = true
      editor.current?.close()
    }
  }, [])
  return (
    <>
      <div ref={host} class={`editor is-${state}`} data-search />
      {state === 'loading' && <Loading lines={3} />}
      {state === 'failed' && (
        <textarea class="plain-editor" aria-label="SQL" value={sql} onInput={(event) => set(event.currentTarget.value)} />
      )}
    </>
  )
}

type Kind = 'now' | 'time' | 'version'

const KINDS: Record<Kind, string> = { now: 'now', time: 'a time', version: 'a version' }
const kindOf = (asOf: AsOf): Kind => (!asOf ? 'now' : versionOf(asOf) ? 'version' : 'time')

/** In the reader's zone, as a field of the browser has it. */
function local(iso: string): string {
  const at = new Date(iso)
  if (Number.isNaN(at.getTime())) return ''
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19)
}

export function AsOfField({ label, value, dags, set, none }: { label: string; value: AsOf | undefined; dags: string[]; set: (value: AsOf | undefined) => void; none?: string }) {
  const id = useId()
  const kind = value === undefined ? 'none' : kindOf(value)
  const version = value === undefined ? undefined : versionOf(value)
  const choose = (next: string) => {
    if (next === 'none') set(undefined)
    else if (next === 'now') set('')
    else if (next === 'time') set(new Date(Math.floor(Date.now() / 1000) * 1000).toISOString())
    else if (dags[0]) set(`${dags[0]}@1`)
  }
  return (
    <div class="as-of">
      <div class="field inline">
        <label for={id}>{label}</label>
        <select id={id} value={kind} onChange={(event) => choose(event.currentTarget.value)}>
          {none && <option value="none">{none}</option>}
          {Object.entries(KINDS).map(([one, text]) => (
            <option key={one} value={one} disabled={one === 'version' && dags.length === 0}>
              {text}
            </option>
          ))}
        </select>
      </div>
      {kind === 'time' && (
        <input type="datetime-local" step="1" aria-label={`${label}: time`} value={local(value!)}
          onChange={(event) => event.currentTarget.value && set(new Date(event.currentTarget.value).toISOString())} />
      )}
      {version && <VersionField label={label} dags={dags} value={version} set={set} />}
    </div>
  )
}

const READABLE = ['active', 'building', 'retired']

function VersionField({ label, dags, value, set }: { label: string; dags: string[]; value: { dag: string; version: number }; set: (value: AsOf) => void }) {
  const { data } = useData<VersionsResponse>(withParameters('/api/v1/versions', { dag: value.dag, limit: 100 }))
  const versions = (data?.versions ?? []).filter((one) => READABLE.includes(one.state))
  return (
    <>
      <select aria-label={`${label}: DAG`} value={value.dag} onChange={(event) => set(`${event.currentTarget.value}@1`)}>
        {(dags.includes(value.dag) ? dags : [value.dag, ...dags]).map((dag) => (
          <option key={dag} value={dag}>
            {dag}
          </option>
        ))}
      </select>
      <select aria-label={`${label}: version`} value={String(value.version)} onChange={(event) => set(`${value.dag}@${event.currentTarget.value}`)}>
        {!versions.some((one) => one.version === value.version) && <option value={String(value.version)}>{value.version}</option>}
        {versions.map((one) => (
          <option key={one.version} value={String(one.version)}>
            {one.version}
            {one.state === 'active' ? ' (serving)' : ''}
          </option>
        ))}
      </select>
    </>
  )
}
