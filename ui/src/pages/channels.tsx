// How messages reach people and other services.
import { useState } from 'preact/hooks'
import { attempt } from '../actions'
import { ApiError, call, post } from '../api'
import { Confirm } from '../confirm'
import { useData } from '../data'
import { TextField } from '../fields'
import { count, counted } from '../format'
import { A, Button, Empty, Loading, Page, Problem, Time, toast } from '../parts'
import type { ChannelsResponse, ChannelTested, ChannelView } from '../types'

const pathOf = (name: string) => `/api/v1/channels/${encodeURIComponent(name)}`

type Question = { what: 'set'; of?: ChannelView } | { what: 'remove'; of: ChannelView }

export function ChannelsPage() {
  const { data, error, loading, reload } = useData<ChannelsResponse>('/api/v1/channels', (changed) => changed.alerts === true)
  const [question, setQuestion] = useState<Question>()
  const close = () => (setQuestion(undefined), reload())
  const test = async (name: string) => {
    const tested = await attempt(() => post<ChannelTested>(`${pathOf(name)}/test`, undefined))
    if (!tested) return
    if (tested.outcome === 'delivered') toast(`A message went over ${name}`)
    else toast(`Not delivered: ${tested.code ?? ''} ${tested.reason ?? ''}`, true)
  }
  const channels = data?.channels ?? []
  return (
    <Page title="Channels" side={<Button look="primary" icon="plus" onClick={() => setQuestion({ what: 'set' })}>Set a channel</Button>}>
      {error && <Problem error={error} retry={reload} />}
      {loading && !data && <Loading />}
      {data && channels.length === 0 && (
        <Empty icon="channel" title="No channel yet">
          <p>Alerts go to people over channels: Slack, email, PagerDuty or a webhook. Set the <A href="/secrets">secret</A> that it needs, then the channel.</p>
        </Empty>
      )}
      <div class="cards">
        {channels.map((one) => (
          <section class="card" key={one.name}>
            <h2>{one.name} <span class="tag">{String(one.config.kind)}</span>{one.platform_alerts && <span class="tag">platform alerts</span>}</h2>
            <p class="muted small">{where(one)}</p>
            {(one.warnings ?? []).map((warning) => <p class="said-box is-held" key={warning}>{warning}</p>)}
            <p>
              {one.waiting ? <A href={`/alerts?show=deliveries&channel=${encodeURIComponent(one.name)}&state=waiting`}>{count(one.waiting)} waiting</A> : <span class="muted">nothing waits</span>}
              {(one.dead ?? 0) > 0 && <> · <A href={`/alerts?show=deliveries&channel=${encodeURIComponent(one.name)}&state=dead`}>{counted(one.dead!, 'message')} not delivered</A></>}
            </p>
            <p class="muted small">Set <Time at={one.changed_at} /> by {one.changed_by}</p>
            <div class="actions">
              <Button onClick={() => void test(one.name)} aria-label={`Test ${one.name}`}>Test</Button>
              <Button onClick={() => setQuestion({ what: 'set', of: one })} aria-label={`Change ${one.name}`}>Change</Button>
              <Button look="ghost" class="is-bad" onClick={() => setQuestion({ what: 'remove', of: one })} aria-label={`Remove ${one.name}`}>Remove</Button>
            </div>
          </section>
        ))}
      </div>
      {question?.what === 'set' && <SetChannel of={question.of} close={close} />}
      {question?.what === 'remove' && (
        <Confirm title={`Remove ${question.of.name}?`} yes="Remove" look="danger" close={close} agree={() => call('DELETE', pathOf(question.of.name))}>
          <p>The history of its messages goes with it. It is refused while alerts name it or messages wait for it.</p>
        </Confirm>
      )}
    </Page>
  )
}

function where({ config }: ChannelView): string {
  const to = config.to
  return String(config.url ?? (Array.isArray(to) ? to.join(', ') : (to ?? config.host ?? '')))
}

const EXAMPLE = { kind: 'slack', url: '${secret:slack_url}' }

function SetChannel({ of, close }: { of?: ChannelView; close: () => void }) {
  const [name, setName] = useState(of?.name ?? '')
  const [text, setText] = useState(JSON.stringify(of?.config ?? EXAMPLE, null, 2))
  const [platform, setPlatform] = useState(of?.platform_alerts ?? false)
  const save = async () => {
    let config: unknown
    try {
      config = JSON.parse(text)
    } catch (error) {
      throw new ApiError(0, 'channel.bad_json', `its settings are no JSON: ${(error as Error).message}`)
    }
    await call('PUT', pathOf(name), { config, platform_alerts: platform })
    toast(`${name} is set; send a message over it to see that it works`)
  }
  return (
    <Confirm title={of ? `Change ${of.name}` : 'Set a channel'} yes="Save" agree={save} close={close}>
      {!of && <TextField label="Name" value={name} set={setName} required placeholder="team" />}
      <TextField label="Settings, as JSON" long value={text} set={setText} required hint={<><code>kind</code> is slack, email, pagerduty or webhook. Secrets stay references.</>} />
      <label class="check"><input type="checkbox" checked={platform} onChange={(event) => setPlatform(event.currentTarget.checked)} /> It gets the platform's own alerts too</label>
    </Confirm>
  )
}
