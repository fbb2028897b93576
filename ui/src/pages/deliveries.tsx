// Messages that were queued for channels: what became of them, and sending them again.
import { useState } from 'preact/hooks'
import { attempt } from '../actions'
import { post, withParameters } from '../api'
import { Confirm } from '../confirm'
import { useData } from '../data'
import { counted } from '../format'
import { A, Button, Empty, Loading, Problem, Time, toast } from '../parts'
import { place, setQuery } from '../router'
import type { ChannelsResponse, DeliveriesChanged, DeliveriesResponse, DeliveryView } from '../types'

const STATES = ['waiting', 'delivered', 'dead', 'withdrawn']
const PER_PAGE = 100

export function DeliveryList() {
  const query = place.value.query
  const filter = { channel: query.get('channel') ?? '', state: query.get('state') ?? '' }
  const before = query.get('before') ?? ''
  const { data, error, loading, reload } = useData<DeliveriesResponse>(withParameters('/api/v1/deliveries', { ...filter, before, limit: PER_PAGE }), (changed) => changed.alerts === true)
  const channels = useData<ChannelsResponse>('/api/v1/channels')
  const [dropping, setDropping] = useState(false)
  const messages = data?.deliveries ?? []
  const open = messages.filter((one) => one.state === 'waiting' || one.state === 'dead')
  const dead = messages.filter((one) => one.state === 'dead')
  const change = async (what: 'replay' | 'drop', of: DeliveryView[]) => {
    const done = await attempt(() => post<DeliveriesChanged>(`/api/v1/deliveries/${what}`, { delivery_ids: of.map((one) => one.delivery_id) }))
    if (!done) return
    toast(what === 'replay' ? `${counted(done.changed, 'message')} will be sent again${done.retracted ? `, ${done.retracted} withdrawn` : ''}` : `${counted(done.changed, 'message')} given up`)
    reload()
  }
  return (
    <>
      <div class="filters" role="search">
        <label class="field">
          <span>Channel</span>
          <select value={filter.channel} onChange={(event) => setQuery({ channel: event.currentTarget.value, before: undefined })}>
            <option value="">Every channel</option>
            {(channels.data?.channels ?? []).map((one) => <option key={one.name} value={one.name}>{one.name}</option>)}
          </select>
        </label>
        <label class="field">
          <span>State</span>
          <select value={filter.state} onChange={(event) => setQuery({ state: event.currentTarget.value, before: undefined })}>
            <option value="">Every state</option>
            {STATES.map((one) => <option key={one} value={one}>{one}</option>)}
          </select>
        </label>
        {dead.length > 0 && <Button icon="retry" onClick={() => void change('replay', dead)}>Send {counted(dead.length, 'dead one')} again</Button>}
        {open.length > 0 && filter.state !== '' && <Button look="danger" icon="cross" onClick={() => setDropping(true)}>Give these up</Button>}
      </div>
      {error && <Problem error={error} retry={reload} />}
      {loading && !data && <Loading />}
      {data && messages.length === 0 && (
        <Empty icon="channel" title={filter.channel || filter.state || before ? 'No message matches' : 'No message was queued'}>
          {filter.channel || filter.state || before ? <A class="button" href="/alerts?show=deliveries">Show all</A> : <p>What alerts find is sent over <A href="/channels">channels</A>, and each message appears here.</p>}
        </Empty>
      )}
      {messages.length > 0 && (
        <div class="table-box">
          <table class="table">
            <thead><tr><th>Channel</th><th>State</th><th>What</th><th>Kind</th><th class="right">Tries</th><th>Queued</th><th>Next or end</th><th>Why</th></tr></thead>
            <tbody>
              {messages.map((one) => (
                <tr key={one.delivery_id}>
                  <td>{one.channel}</td>
                  <td><span class={`state delivery-${one.state}`}>{one.state}</span></td>
                  <td class="wrap">{one.title || one.alert}</td>
                  <td>{one.kind}</td>
                  <td class="right">{one.tries}</td>
                  <td><Time at={one.created_at} /></td>
                  <td><Time at={one.ended_at ?? one.ready_at} /></td>
                  <td class="wrap">{one.reason ?? one.code ?? ''}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <div class="below">
        {before ? <Button icon="left" onClick={() => setQuery({ before: undefined })}>The newest</Button> : <span />}
        {data?.before !== undefined && <Button onClick={() => setQuery({ before: String(data.before) })}>Show older ones</Button>}
      </div>
      {dropping && (
        <Confirm title="Give these messages up?" yes="Give them up" look="danger" agree={() => change('drop', open)} close={() => setDropping(false)}>
          <p>{counted(open.length, 'message')} will never be sent. Their alerts stay as they are.</p>
        </Confirm>
      )}
    </>
  )
}
