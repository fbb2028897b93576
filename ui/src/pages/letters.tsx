// Dead letters: computed rows that could not be written, and what to do about them.
import { useState } from 'preact/hooks'
import { attempt } from '../actions'
import { post, withParameters } from '../api'
import { Confirm } from '../confirm'
import { useData } from '../data'
import { bytes, count, counted } from '../format'
import { A, Button, Empty, Loading, Page, Problem, sentence, Time, toast } from '../parts'
import { address, place } from '../router'
import { mayWrite } from '../session'
import type { DeadLetterDetail, DeadLettersResponse, DeadLetterView, TaskChanges } from '../types'

export function LettersPage() {
  const dataset = place.value.query.get('dataset') ?? undefined
  const { data, error, loading, reload } = useData<DeadLettersResponse>(
    withParameters('/api/v1/dead-letters', { dataset, limit: 200 }),
    (changed) => changed.dead_letters === true,
  )
  const [opened, setOpened] = useState<string>()
  return (
    <Page title="Dead letters" side={dataset && <A class="button" href="/dead-letters">Of all datasets</A>}>
      {error && <Problem error={error} retry={reload} />}
      {loading && !data && <Loading />}
      {data?.letters.length === 0 && (
        <Empty icon="letters" title="No dead letters">
          <p>Rows that a buffered dataset refuses, such as values that do not fit its columns, wait here until somebody replays or drops them.</p>
        </Empty>
      )}
      <div class="stack">
        {data?.letters.map((one) => (
          <Letter key={one.task_id} letter={one} opened={opened === one.task_id} open={() => setOpened(opened === one.task_id ? undefined : one.task_id)} changed={reload} />
        ))}
      </div>
    </Page>
  )
}

interface Props {
  letter: DeadLetterView
  opened: boolean
  open: () => void
  changed: () => void
}

function Letter({ letter, opened, open, changed }: Props) {
  const [asking, setAsking] = useState(false)
  const change = async (what: 'replay' | 'drop') => {
    const answer = await attempt(() => post<TaskChanges>(`/api/v1/dead-letters/${what}`, { task_ids: [letter.task_id] }))
    if (answer?.changed[letter.task_id]) toast(what === 'replay' ? 'The sink will try it again' : 'The letter is dropped')
    else if (answer) toast(`Nothing changed: ${answer.why_unchanged?.[letter.task_id] ?? 'unknown'}`, true)
    changed()
  }
  return (
    <section class="card">
      <div class="letter-head">
        <div>
          <h2>
            <A href={address.dataset(letter.dataset)}>{letter.dataset}</A> {letter.scope}
          </h2>
          <p class="muted">
            {counted(letter.rows, 'row')}, {bytes(letter.bytes)}, from <A href={address.task(letter.task_id)}>{letter.dag}/{letter.job}</A>; refused <Time at={letter.failed_at} /> after {counted(letter.tries, 'try', 'tries')}
            {letter.standing && letter.standing !== 'open' && <span class="tag">{letter.standing}</span>}
          </p>
        </div>
        <div class="actions">
          <Button icon={opened ? 'less' : 'plus'} aria-expanded={opened} onClick={open}>Details</Button>
          {mayWrite() && (
            <>
              <Button icon="retry" look="primary" onClick={() => void change('replay')}>Replay</Button>
              <Button icon="cross" look="danger" onClick={() => setAsking(true)}>Drop</Button>
            </>
          )}
        </div>
      </div>
      {letter.error && (
        <p class="said-box is-dead">
          {String(letter.error.message ?? '')} <code>{String(letter.error.code ?? '')}</code>
        </p>
      )}
      {opened && <Detail id={letter.task_id} />}
      {asking && (
        <Confirm title="Drop these rows?" yes="Drop them" look="danger" agree={() => change('drop')} close={() => setAsking(false)}>
          <p>{counted(letter.rows, 'row')} of {letter.dataset} {letter.scope} are given up. Their task stays dead and is acknowledged.</p>
        </Confirm>
      )}
    </section>
  )
}

function Detail({ id }: { id: string }) {
  const { data, error } = useData<DeadLetterDetail>(`/api/v1/dead-letters/${encodeURIComponent(id)}`)
  if (error) return <Problem error={error} />
  if (!data) return <Loading lines={2} />
  const row = data.row
  return (
    <div class="stack">
      {row && (
        <p>
          Row {row.row !== undefined ? count(row.row) : ''} {row.column && <>column <code>{row.column}</code></>}: {row.value !== undefined ? <code>{row.value}</code> : 'null'} is not {row.expected ?? 'what the dataset takes'}.
        </p>
      )}
      {data.next_step && <p class="next-step"><strong>Next:</strong> {sentence(data.next_step)}</p>}
      {data.why_not_replayed && <p class="muted">It cannot be replayed now: {data.why_not_replayed}.</p>}
      <ul class="lineage">
        {data.files.map((file) => (
          <li key={file.path}><code>{file.path}</code> <span class="muted">{counted(file.rows, 'row')}, {bytes(file.bytes)}</span></li>
        ))}
      </ul>
    </div>
  )
}
