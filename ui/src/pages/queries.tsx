// SQL over datasets: an editor with completion, and the result as a table.
import { useMemo, useRef, useState } from 'preact/hooks'
import { ApiError, post } from '../api'
import { useData } from '../data'
import { bytes, count, counted, duration } from '../format'
import { Grid, type Rows } from '../grid'
import { Icon } from '../icons'
import { A, Button, Empty, Page, Problem, sentence } from '../parts'
import { address, place, setQuery } from '../router'
import type { CatalogResponse, DatasetDetail, QueryPlan, QueryTask } from '../types'

const KEPT = 'traceplane-query'

interface Outcome {
  rows?: Rows
  task?: QueryTask
  plan?: QueryPlan
  error?: ApiError
  took?: number
}

export function QueriesPage() {
  const [sql, setSql] = useState(place.peek().query.get('sql') ?? localStorage.getItem(KEPT) ?? '')
  const [time, setTime] = useState(place.peek().query.get('as_of') ?? '')
  const [outcome, setOutcome] = useState<Outcome>()
  const [busy, setBusy] = useState<AbortController>()
  const body = () => ({ sql, ...(time ? { as_of_time: new Date(time).toISOString() } : {}) })
  const ask = async (plan: boolean) => {
    if (!sql.trim() || busy) return
    localStorage.setItem(KEPT, sql)
    setQuery({ sql: sql.length < 4000 ? sql : undefined, as_of: time })
    const begun = performance.now()
    const controller = new AbortController()
    setBusy(controller)
    try {
      if (plan) setOutcome({ plan: await post<QueryPlan>('/api/v1/query-plan', body()) })
      else {
        const answer = await post<Rows | QueryTask>('/api/v1/query', { ...body(), format: 'json' })
        setOutcome('rows' in answer ? { rows: answer, took: performance.now() - begun } : { task: answer })
      }
    } catch (error) {
      setOutcome({ error: error instanceof ApiError ? error : new ApiError(0, 'unexpected', String(error)) })
    }
    setBusy(undefined)
  }
  return (
    <Page title="Queries">
      <div class="query">
        <section class="card query-card">
          <Editor sql={sql} set={setSql} run={() => void ask(false)} />
          <div class="query-tools">
            <Button look="primary" icon="running" disabled={!sql.trim() || busy !== undefined} onClick={() => void ask(false)}>
              {busy ? 'Running…' : 'Run'}
            </Button>
            <kbd>Ctrl Enter</kbd>
            <Button disabled={!sql.trim() || busy !== undefined} onClick={() => void ask(true)}>Plan</Button>
            <label class="field as-of">
              <span>As of</span>
              <input type="datetime-local" step="1" value={time} onInput={(event) => setTime(event.currentTarget.value)} />
            </label>
            {time && <Button look="ghost" icon="close" onClick={() => setTime('')} aria-label="As of now" />}
            {outcome?.rows && <Download rows={outcome.rows} />}
          </div>
        </section>
        <Result outcome={outcome} />
      </div>
    </Page>
  )
}

function Result({ outcome }: { outcome?: Outcome }) {
  if (!outcome)
    return (
      <Empty icon="queries" title="Ask something">
        <p>One <code>select</code> over datasets, in DuckDB's dialect. It reads one consistent state of all of them.</p>
      </Empty>
    )
  if (outcome.error) return <Problem error={outcome.error} />
  if (outcome.task)
    return (
      <section class="card">
        <h2>Spark runs it as a task</h2>
        {outcome.task.reason && <p>{sentence(outcome.task.reason)}</p>}
        <p>Its result becomes the dataset <A href={address.dataset(outcome.task.dataset)}>{outcome.task.dataset}</A>: <A href={address.task(outcome.task.task_id)}>the task</A></p>
      </section>
    )
  if (outcome.plan)
    return (
      <section class="card">
        <h2>{outcome.plan.engine === 'spark' ? 'Spark' : 'DuckDB'} would run it</h2>
        <p>{sentence(outcome.plan.reason)}</p>
        <p class="muted">It would read {count(outcome.plan.files)} of {counted(outcome.plan.of_files, 'file')}, about {bytes(outcome.plan.bytes)}.</p>
      </section>
    )
  const rows = outcome.rows!
  return (
    <>
      <p class="muted" role="status">{counted(rows.rows.length, 'row')} in {duration(outcome.took ?? 0)}</p>
      {rows.rows.length > 0 && <Grid rows={rows} label="Result" />}
    </>
  )
}

function Download({ rows }: { rows: Rows }) {
  const save = () => {
    const cell = (value: unknown) => {
      const text = value === null || value === undefined ? '' : typeof value === 'object' ? JSON.stringify(value) : String(value)
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
    }
    const text = [rows.columns.map((column) => cell(column.name)), ...rows.rows.map((row) => row.map(cell))].map((line) => line.join(',')).join('\r\n')
    const link = document.createElement('a')
    link.href = URL.createObjectURL(new Blob([text], { type: 'text/csv' }))
    link.download = 'result.csv'
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
  }
  return <Button class="to-the-right" icon="deploys" onClick={save}>Download CSV</Button>
}

// The editor -----------------------------------------------------------------------------------------

const WORDS =
  'select from where group by order having limit offset join left right full inner outer cross on using as and or not in is null like ilike between case when then else end distinct union all intersect except with asc desc exists over partition rows count sum avg min max round coalesce cast date_trunc interval true false'
const KEYWORDS = new Set(WORDS.split(' '))
const TOKEN = /(--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|('(?:[^']|'')*'?)|("(?:[^"]|"")*"?)|(\b\d+(?:\.\d+)?\b)|([A-Za-z_][\w.]*)|([\s\S])/g
const PLAIN = /^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$/
const MOST_OFFERED = 8

interface Offer {
  text: string
  kind: string
}

/** A text area over the same text in colours: selection, undo and screen readers are the browser's own. */
function Editor({ sql, set, run }: { sql: string; set: (sql: string) => void; run: () => void }) {
  const area = useRef<HTMLTextAreaElement>(null)
  const behind = useRef<HTMLPreElement>(null)
  const [offers, setOffers] = useState<{ at: number; list: Offer[]; chosen: number }>()
  const catalog = useData<CatalogResponse>('/api/v1/datasets')
  const named = useMemo(() => catalog.data?.datasets.map((one) => one.dataset).find((name) => sql.includes(name)), [catalog.data, sql])
  const detail = useData<DatasetDetail>(named ? `/api/v1/datasets/${encodeURIComponent(named)}` : null)
  const words = useMemo<Offer[]>(
    () => [
      ...(detail.data?.columns ?? []).map((column) => ({ text: column.name, kind: column.type })),
      ...(catalog.data?.datasets ?? []).map((one) => ({ text: PLAIN.test(one.dataset) ? one.dataset : `"${one.dataset.replaceAll('"', '""')}"`, kind: 'dataset' })),
      ...[...KEYWORDS].map((text) => ({ text, kind: '' })),
    ],
    [catalog.data, detail.data],
  )
  const offer = () => {
    const at = area.current!.selectionStart
    const begun = /["\w.]+$/.exec(area.current!.value.slice(0, at))?.[0] ?? ''
    const wanted = begun.replaceAll('"', '').toLowerCase()
    if (wanted.length < 2) return setOffers(undefined)
    const list = words.filter((one) => one.text.replaceAll('"', '').toLowerCase().includes(wanted) && one.text !== begun)
    list.sort((a, b) => Number(!a.text.replaceAll('"', '').toLowerCase().startsWith(wanted)) - Number(!b.text.replaceAll('"', '').toLowerCase().startsWith(wanted)))
    setOffers(list.length ? { at: at - begun.length, list: list.slice(0, MOST_OFFERED), chosen: 0 } : undefined)
  }
  const take = (one: Offer) => {
    const field = area.current!
    field.focus()
    field.setSelectionRange(offers!.at, field.selectionStart)
    document.execCommand('insertText', false, one.text) // the only way that undo knows of
    setOffers(undefined)
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      event.preventDefault()
      setOffers(undefined)
      return run()
    }
    if (!offers) return
    if (event.key === 'Escape') setOffers(undefined)
    else if (event.key === 'ArrowDown') setOffers({ ...offers, chosen: (offers.chosen + 1) % offers.list.length })
    else if (event.key === 'ArrowUp') setOffers({ ...offers, chosen: (offers.chosen + offers.list.length - 1) % offers.list.length })
    else if (event.key === 'Tab' || event.key === 'Enter') take(offers.list[offers.chosen]!)
    else return
    event.preventDefault()
  }
  return (
    <div class="editor">
      <pre ref={behind} aria-hidden="true">
        {coloured(sql)}
        {'\n'}
      </pre>
      <textarea ref={area} value={sql} spellcheck={false} autocomplete="off" aria-label="SQL" placeholder={'select *\nfrom shop.sales\nlimit 100'} data-search
        aria-autocomplete="list" onKeyDown={onKeyDown} onBlur={() => setTimeout(() => setOffers(undefined), 200)}
        onInput={(event) => (set(event.currentTarget.value), offer())}
        onScroll={(event) => {
          behind.current!.scrollTop = event.currentTarget.scrollTop
          behind.current!.scrollLeft = event.currentTarget.scrollLeft
        }} />
      {offers && (
        <ul class="offers" aria-label="Completions">
          {offers.list.map((one, n) => (
            <li key={one.text} class={n === offers.chosen ? 'chosen' : ''} onMouseDown={(event) => (event.preventDefault(), take(one))}>
              <Icon name={one.kind === 'dataset' ? 'dataset' : 'right'} />
              {one.text}
              <span class="muted">{one.kind}</span>
            </li>
          ))}
        </ul>
      )}
    </div>
  )
}

function coloured(sql: string) {
  return [...sql.matchAll(TOKEN)].map(([text, comment, quoted, name, number, word], n) => {
    const kind = comment ? 'comment' : quoted ? 'text' : name ? 'name' : number ? 'number' : word && KEYWORDS.has(word.toLowerCase()) ? 'word' : undefined
    return kind ? <span key={n} class={`sql-${kind}`}>{text}</span> : text
  })
}
