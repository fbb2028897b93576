// Who did what, and what was refused. The filters stand in the address; what they match can be saved.
import { useState } from 'preact/hooks'
import { attempt } from '../actions'
import { get, withParameters } from '../api'
import { useData } from '../data'
import { FilterInput } from '../fields'
import { count } from '../format'
import { Button, Empty, Loading, Page, Problem, Time, toast } from '../parts'
import { place, setQuery } from '../router'
import type { AuditEntry, AuditResponse } from '../types'

const PER_PAGE = 100
const EXPORTED_AT_ONCE = 1000
const MOST_EXPORTED = 100_000

const SINCE: [string, number][] = [['1 h', 3_600_000], ['24 h', 86_400_000], ['7 d', 7 * 86_400_000], ['30 d', 30 * 86_400_000]]

/** To the minute, so that looking again asks for the same. */
const since = (name: string): string | undefined => {
  const ms = SINCE.find(([one]) => one === name)?.[1]
  return ms === undefined ? undefined : new Date(Math.floor((Date.now() - ms) / 60_000) * 60_000).toISOString()
}

export function AuditPage() {
  const query = place.value.query
  const filter = { principal: query.get('who') ?? '', action: query.get('action') ?? '', outcome: query.get('outcome') ?? '', since: since(query.get('since') ?? '') }
  const before = query.get('before') ?? ''
  const { data, error, loading, reload } = useData<AuditResponse>(withParameters('/api/v1/audit', { ...filter, before, limit: PER_PAGE }))
  const entries = data?.entries ?? []
  const isFiltered = Object.values(filter).some(Boolean) || before !== ''
  const change = (changes: Record<string, string | undefined>) => setQuery({ before: undefined, ...changes })
  return (
    <Page title="Audit" side={<Export filter={filter} />}>
      <div class="filters" role="search">
        <label class="field">
          <span>Who</span>
          <FilterInput type="search" data-search value={filter.principal} placeholder="Everybody" set={(who) => change({ who })} />
        </label>
        <label class="field">
          <span>Action</span>
          <FilterInput type="search" value={filter.action} placeholder="deploy, secrets, …" set={(action) => change({ action })} />
        </label>
        <label class="field">
          <span>Outcome</span>
          <select value={filter.outcome} onChange={(event) => change({ outcome: event.currentTarget.value })}>
            <option value="">Every outcome</option>
            <option value="ok">done</option>
            <option value="refused">refused</option>
          </select>
        </label>
        <label class="field">
          <span>Time</span>
          <select value={query.get('since') ?? ''} onChange={(event) => change({ since: event.currentTarget.value })}>
            <option value="">All that is kept</option>
            {SINCE.map(([name]) => <option key={name} value={name}>last {name}</option>)}
          </select>
        </label>
      </div>
      {error && <Problem error={error} retry={reload} />}
      {loading && !data && <Loading />}
      {data && entries.length === 0 && (
        <Empty icon="audit" title={isFiltered ? 'No entry matches' : 'Nothing was recorded yet'}>
          {isFiltered ? <Button onClick={() => setQuery({ who: undefined, action: undefined, outcome: undefined, since: undefined, before: undefined })}>Show all</Button> : <p>Each change and each refusal appears here.</p>}
        </Empty>
      )}
      {entries.length > 0 && (
        <div class="table-box">
          <table class="table">
            <thead><tr><th>When</th><th>Who</th><th>Action</th><th>On</th><th>Outcome</th><th>From</th></tr></thead>
            <tbody>
              {entries.map((one) => (
                <tr key={one.audit_id}>
                  <td><Time at={one.at} /></td>
                  <td>{one.principal} <span class="muted">{one.kind}</span></td>
                  <td class="wrap"><code>{one.action}</code></td>
                  <td class="wrap">{Object.entries(one.object).map(([name, value]) => `${name} ${value}`).join(', ')}</td>
                  <td>{one.outcome === 'ok' ? <span class="state state-completed">done</span> : <span class="state state-dead">{one.outcome}</span>}{(one.times ?? 1) > 1 && <span class="muted"> × {count(one.times!)}</span>}</td>
                  <td class="muted">{one.remote ?? '—'}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <div class="below">
        {before ? <Button icon="left" onClick={() => setQuery({ before: undefined })}>The newest</Button> : <span />}
        {entries.length === PER_PAGE && <Button onClick={() => setQuery({ before: String(entries.at(-1)!.audit_id) })}>Show older ones</Button>}
      </div>
    </Page>
  )
}

function Export({ filter }: { filter: Record<string, string | undefined> }) {
  const [busy, setBusy] = useState(false)
  const save = async () => {
    setBusy(true)
    const entries = await attempt(() => everything(filter))
    setBusy(false)
    if (!entries) return
    const link = document.createElement('a')
    link.href = URL.createObjectURL(new Blob(entries.map((one) => `${JSON.stringify(one)}\n`), { type: 'application/x-ndjson' }))
    link.download = 'audit.jsonl'
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
    if (entries.length >= MOST_EXPORTED) toast(`The newest ${count(entries.length)} entries are saved; \`traceplane audit\` exports the rest.`, true)
  }
  return <Button icon="download" disabled={busy} onClick={() => void save()}>{busy ? 'Exporting…' : 'Export as JSON lines'}</Button>
}

async function everything(filter: Record<string, string | undefined>): Promise<AuditEntry[]> {
  const entries: AuditEntry[] = []
  for (;;) {
    const page = (await get<AuditResponse>(withParameters('/api/v1/audit', { ...filter, before: entries.at(-1)?.audit_id, limit: EXPORTED_AT_ONCE }))).entries
    entries.push(...page)
    if (page.length < EXPORTED_AT_ONCE || entries.length >= MOST_EXPORTED) return entries
  }
}
