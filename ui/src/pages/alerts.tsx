// Alerts that were found, newest first; one of them with its messages.
import { useState } from 'preact/hooks'
import { attempt } from '../actions'
import { post, withParameters } from '../api'
import { useData } from '../data'
import { count } from '../format'
import { Tabs, tabOf } from '../fields'
import { A, Button, Empty, Fact, Facts, Loading, Page, Problem, sentence, Time, toast } from '../parts'
import { address, place, setQuery } from '../router'
import { DeliveryList } from './deliveries'
import { Silence, Silences } from './silences'
import { isAdmin, mayWrite } from '../session'
import type { AlertDetail, AlertsResponse, AlertSummaryResponse, AlertView } from '../types'

const STATES = ['open', 'acknowledged', 'suppressed', 'retracted']
const PER_PAGE = 100

export function AlertsPage() {
  const show = tabOf('found')
  return (
    <Page title="Alerts">
      <Tabs
        tabs={[
          { id: 'found', title: 'Found' },
          { id: 'firing', title: 'By alert' },
          ...(isAdmin() ? [{ id: 'deliveries', title: 'Deliveries' }] : []),
          { id: 'silences', title: 'Silences' },
        ]}
      />
      {show === 'firing' ? <Firing /> : show === 'deliveries' ? <DeliveryList /> : show === 'silences' ? <Silences /> : <FoundAlerts />}
    </Page>
  )
}

function FoundAlerts() {
  const query = place.value.query
  const filter = { state: query.get('state') ?? '', dag: query.get('dag') ?? '', alert: query.get('alert') ?? '' }
  const after = query.get('after') ?? ''
  const { data, error, loading, reload } = useData<AlertsResponse>(withParameters('/api/v1/alerts', { ...filter, after, limit: PER_PAGE }), (changed) => changed.alerts === true)
  const alerts = data?.alerts ?? []
  const filtered = Object.values(filter).some(Boolean)
  return (
    <>
      <div class="filters" role="search">
        <label class="field">
          <span>State</span>
          <select value={filter.state} onChange={(event) => setQuery({ state: event.currentTarget.value, after: undefined })}>
            <option value="">Every state</option>
            {STATES.map((one) => <option key={one} value={one}>{one}</option>)}
          </select>
        </label>
        {(filter.alert || filter.dag) && <Button look="ghost" icon="close" onClick={() => setQuery({ alert: undefined, dag: undefined, after: undefined })}>{filter.dag} {filter.alert}</Button>}
      </div>
      {error && <Problem error={error} retry={reload} />}
      {loading && !data && <Loading />}
      {data && alerts.length === 0 && (
        <Empty icon="alerts" title={filtered || after ? 'No alert matches' : 'No alert was found'}>
          {filtered || after ? <A class="button" href="/alerts">Show all</A> : <p>A DAG file says which rows somebody is to be told of, under <code>alerts:</code>. What they find appears here.</p>}
        </Empty>
      )}
      {alerts.length > 0 && (
        <div class="table-box">
          <table class="table">
            <thead>
              <tr><th>Severity</th><th>State</th><th>What</th><th>Alert</th><th>Where</th><th>Found</th></tr>
            </thead>
            <tbody>
              {alerts.map((one) => (
                <tr key={one.alert_id}>
                  <td><Severity of={one.severity} /></td>
                  <td><AlertState of={one} /></td>
                  <td class="wrap"><A class="strong" href={`/alerts/${one.alert_id}`}>{one.title || one.alert}</A></td>
                  <td><A href={withParameters('/alerts', { dag: one.dag, alert: one.alert })}>{one.alert}</A> <span class="muted">{one.dag || 'the platform'}</span></td>
                  <td>{one.position ?? <span class="muted">—</span>}</td>
                  <td><Time at={one.found_at} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <div class="below">
        {after ? <Button icon="left" onClick={() => setQuery({ after: undefined })}>The newest</Button> : <span />}
        {data?.after && <Button onClick={() => setQuery({ after: data.after })}>Show older ones</Button>}
      </div>
    </>
  )
}

function Firing() {
  const { data, error, loading, reload } = useData<AlertSummaryResponse>('/api/v1/alert-summary', (changed) => changed.alerts === true)
  const alerts = [...(data?.alerts ?? [])].sort((a, b) => b.open - a.open)
  if (error) return <Problem error={error} retry={reload} />
  if (loading && !data) return <Loading />
  if (alerts.length === 0)
    return (
      <Empty icon="alerts" title="No alert has found anything">
        <p>What each alert found, how much of it was sent, and why the rest was not, appears here.</p>
      </Empty>
    )
  return (
    <div class="table-box">
      <table class="table">
        <thead><tr><th>Alert</th><th>DAG</th><th>Now</th><th class="right">Found</th><th class="right">Sent</th><th class="right">Retracted</th><th>Not sent</th><th>Last found</th></tr></thead>
        <tbody>
          {alerts.map((one) => (
            <tr key={`${one.dag}/${one.alert}`}>
              <td><A class="strong" href={withParameters('/alerts', { dag: one.dag, alert: one.alert })}>{one.alert}</A></td>
              <td>{one.dag || <span class="muted">the platform</span>}</td>
              <td>{one.open > 0 ? <A href={withParameters('/alerts', { dag: one.dag, alert: one.alert, state: 'open' })}><span class="state alert-open">{count(one.open)} open</span></A> : <span class="muted">quiet</span>}</td>
              <td class="right">{count(one.found)}</td>
              <td class="right">{count(one.sent)}</td>
              <td class="right">{count(one.retracted)}</td>
              <td>{Object.entries(one.suppressed ?? {}).map(([reason, n]) => `${count(n)} ${reason}`).join(', ') || <span class="muted">—</span>}</td>
              <td><Time at={one.last_found_at} /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

const Severity = ({ of }: { of: string }) => <span class={`tag severity-${of}`}>{of}</span>

function AlertState({ of }: { of: AlertView }) {
  return (
    <span class={`state alert-${of.state}`}>
      {of.state}
      {of.suppressed && <span class="note">{of.suppressed}</span>}
    </span>
  )
}

export function AlertPage({ id }: { id: string }) {
  const { data, error, reload } = useData<AlertDetail>(`/api/v1/alerts/${encodeURIComponent(id)}`, (changed) => changed.alerts === true)
  const [busy, setBusy] = useState(false)
  const [silencing, setSilencing] = useState(false)
  if (error && !data)
    return error.status === 404 || error.status === 400 ? (
      <Empty icon="alerts" title="There is no such alert"><A class="button" href="/alerts">All alerts</A></Empty>
    ) : (
      <Problem error={error} retry={reload} />
    )
  if (!data) return <Loading />
  const { alert, deliveries, text } = data
  const acknowledge = async () => {
    setBusy(true)
    if (await attempt(() => post('/api/v1/alerts/acknowledge', { alert_ids: [alert.alert_id] }))) toast('Acknowledged')
    setBusy(false)
    reload()
  }
  return (
    <Page
      title={alert.title || alert.alert}
      side={
        mayWrite() && (
          <>
            <Button icon="pause" onClick={() => setSilencing(true)}>Silence…</Button>
            {alert.state === 'open' && <Button look="primary" icon="check" disabled={busy} onClick={() => void acknowledge()}>Acknowledge</Button>}
          </>
        )
      }
    >
      <div class="columns">
        <div class="column-main">
          <section class="card">
            <h2>What was found</h2>
            {text && <p class="failure-text">{text}</p>}
            <Values of={{ ...alert.subject, ...alert.fields }} />
            {alert.hides_personal_data && <p class="muted small">Values that you may not see are shown as ***.</p>}
          </section>
          <section class="card">
            <h2>Messages</h2>
            {deliveries.length === 0 && <p class="muted">{alert.suppressed ? sentence(`Nothing was sent: ${alert.suppressed}`) : 'None was sent.'}</p>}
            {deliveries.length > 0 && (
              <table class="table flat">
                <thead><tr><th>Channel</th><th>Kind</th><th>State</th><th class="right">Tries</th><th>Queued</th><th>Why</th></tr></thead>
                <tbody>
                  {deliveries.map((one) => (
                    <tr key={one.delivery_id}>
                      <td>{one.channel}</td>
                      <td>{one.kind}</td>
                      <td><span class={`state delivery-${one.state}`}>{one.state}</span></td>
                      <td class="right">{one.tries}</td>
                      <td><Time at={one.created_at} /></td>
                      <td class="wrap">{one.reason ?? one.code ?? ''}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )}
          </section>
        </div>
        <div class="column-side">
          <section class="card">
            <h2>Facts</h2>
            <Facts>
              <Fact name="State"><AlertState of={alert} /></Fact>
              <Fact name="Severity"><Severity of={alert.severity} /></Fact>
              <Fact name="Alert">{alert.alert}</Fact>
              <Fact name="DAG">{alert.dag || 'the platform'}</Fact>
              {alert.dataset && <Fact name="Dataset"><A href={address.dataset(alert.dataset)}>{alert.dataset}</A></Fact>}
              {alert.position && <Fact name="Where">{alert.position}</Fact>}
              {alert.event_time && <Fact name="Happened"><Time at={alert.event_time} /></Fact>}
              <Fact name="Found"><Time at={alert.found_at} /></Fact>
              {alert.acknowledged_at && <Fact name="Acknowledged"><Time at={alert.acknowledged_at} /> by {alert.acknowledged_by}</Fact>}
              {alert.retracted_at && <Fact name="Retracted"><Time at={alert.retracted_at} /></Fact>}
              {alert.owner && <Fact name="Owner">{alert.owner}</Fact>}
              {(data.occurrence ?? 1) > 1 && <Fact name="Occurrence">{data.occurrence}</Fact>}
            </Facts>
          </section>
        </div>
      </div>
      {silencing && <Silence dag={alert.dag} alert={alert.alert} subject={alert.subject} close={() => setSilencing(false)} />}
    </Page>
  )
}

function Values({ of }: { of: Record<string, unknown> }) {
  if (!Object.keys(of).length) return null
  return (
    <Facts>
      {Object.entries(of).map(([name, value]) => (
        <Fact key={name} name={name}><code>{typeof value === 'object' ? JSON.stringify(value) : String(value)}</code></Fact>
      ))}
    </Facts>
  )
}
