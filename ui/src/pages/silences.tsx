// Silences: alerts that are recorded for a while, and not sent.
import { useState } from 'preact/hooks'
import { attempt } from '../actions'
import { call, post } from '../api'
import { Confirm } from '../confirm'
import { useData } from '../data'
import { ChoiceField, TextField } from '../fields'
import { Button, Empty, Loading, Problem, Time, toast } from '../parts'
import { mayWrite } from '../session'
import type { SilencesResponse, SilenceView } from '../types'

export function Silences() {
  const { data, error, loading, reload } = useData<SilencesResponse>('/api/v1/alert-silences?limit=1000', (changed) => changed.alerts === true)
  const [making, setMaking] = useState(false)
  const [ending, setEnding] = useState<SilenceView>()
  const silences = data?.silences ?? []
  const end = async (one: SilenceView) => {
    if (await attempt(() => call('DELETE', `/api/v1/alert-silences/${one.silence_id}`))) toast('The silence has ended')
    reload()
  }
  return (
    <>
      {mayWrite() && (
        <div class="filters">
          <Button look="primary" icon="pause" onClick={() => setMaking(true)}>Silence alerts</Button>
        </div>
      )}
      {error && <Problem error={error} retry={reload} />}
      {loading && !data && <Loading />}
      {data && silences.length === 0 && (
        <Empty icon="alerts" title="Nothing is silenced">
          <p>During maintenance, silence what it sets off: it is recorded all the same, and nobody is woken.</p>
        </Empty>
      )}
      {silences.length > 0 && (
        <div class="table-box">
          <table class="table">
            <thead><tr><th>Alerts</th><th>About</th><th>Why</th><th>Ends</th><th>Made</th><th><span class="hidden">Actions</span></th></tr></thead>
            <tbody>
              {silences.map((one) => (
                <tr key={one.silence_id}>
                  <td class="strong">{one.alert ?? 'every alert'} <span class="muted">{one.dag ?? 'of every DAG'}</span></td>
                  <td class="wrap">{Object.entries(one.subject ?? {}).map(([name, value]) => `${name} ${String(value)}`).join(', ') || <span class="muted">anything</span>}</td>
                  <td class="wrap">{one.reason}</td>
                  <td><Time at={one.ends_at} /></td>
                  <td><Time at={one.created_at} /> <span class="muted">by {one.created_by}</span></td>
                  <td class="right">{mayWrite() && <Button look="ghost" aria-label={`End it: the silence of ${one.alert ?? 'every alert'}`} onClick={() => setEnding(one)}>End it</Button>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {making && <Silence close={() => (setMaking(false), reload())} />}
      {ending && (
        <Confirm title="End this silence?" yes="End it" agree={() => end(ending)} close={() => setEnding(undefined)}>
          <p>What {ending.alert ?? 'any alert'} finds from now on is sent again. What it found meanwhile stays unsent.</p>
        </Confirm>
      )}
    </>
  )
}

const HOUR = 3600
const SPANS: [string, string][] = [[String(HOUR), 'an hour'], [String(4 * HOUR), 'four hours'], [String(24 * HOUR), 'a day'], [String(7 * 24 * HOUR), 'a week'], [String(30 * 24 * HOUR), '30 days']]

export function Silence({ dag = '', alert = '', subject, close }: { dag?: string; alert?: string; subject?: Record<string, unknown>; close: () => void }) {
  const [ofDag, setDag] = useState(dag)
  const [ofAlert, setAlert] = useState(alert)
  const [seconds, setSeconds] = useState(String(HOUR))
  const [reason, setReason] = useState('')
  const hasSubject = Object.keys(subject ?? {}).length > 0
  const [only, setOnly] = useState(hasSubject)
  const save = async () => {
    await post('/api/v1/alert-silences', {
      seconds: Number(seconds),
      reason,
      ...(ofDag ? { dag: ofDag } : {}),
      ...(ofAlert ? { alert: ofAlert } : {}),
      ...(hasSubject && only ? { subject } : {}),
    })
    toast('Silenced: what it finds is recorded, and not sent')
  }
  return (
    <Confirm title={alert ? `Silence ${alert}` : 'Silence alerts'} yes="Silence" agree={save} close={close}>
      {!alert && <TextField label="DAG" value={ofDag} set={setDag} placeholder="every DAG" />}
      {!alert && <TextField label="Alert" value={ofAlert} set={setAlert} placeholder="every alert" />}
      {hasSubject && (
        <label class="check">
          <input type="checkbox" checked={only} onChange={(event) => setOnly(event.currentTarget.checked)} /> Only about {Object.entries(subject!).map(([name, value]) => `${name} ${String(value)}`).join(', ')}
        </label>
      )}
      <ChoiceField label="For" value={seconds} set={setSeconds} choices={SPANS} />
      <TextField label="Why" value={reason} set={setReason} required placeholder="The bank changes its files tonight" />
    </Confirm>
  )
}
