// What a deploy would change, or a version that is being built changes, as a coloured graph and as a list.
import { useMemo, useRef, useState } from 'preact/hooks'
import { ApiError, post, withParameters } from '../api'
import { useData } from '../data'
import { brief, bytes, count, counted } from '../format'
import { type Change, graphOf } from '../graph/model'
import { GraphView } from '../graph/view'
import { Icon } from '../icons'
import { concernsDag } from '../live'
import { Button, Loading, Problem, sentence } from '../parts'
import { address, go } from '../router'
import type { GraphJob, GraphResponse, JobChangeView, PlanResponse, PlanSteps } from '../types'

const WORDS: Record<Change, string> = {
  added: 'Added',
  breaking: 'Breaking change',
  rebuilt: 'Computed anew',
  in_place: 'Changed in place',
  removed: 'Removed',
}

/** For a DAG file that is pasted or dropped, with the modules of its functions. */
export function PlanFile({ dag }: { dag?: string }) {
  const [text, setText] = useState('')
  const [code, setCode] = useState<Record<string, string>>({})
  const [plan, setPlan] = useState<PlanResponse>()
  const [error, setError] = useState<ApiError>()
  const [over, setOver] = useState(false)
  const [busy, setBusy] = useState(false)
  const chooser = useRef<HTMLInputElement>(null)
  const modules = Object.keys(code)
  const show = async (dagFile: string, files: Record<string, string>) => {
    setBusy(true)
    setError(undefined)
    setPlan(undefined)
    try {
      setPlan(await post<PlanResponse>('/api/v1/plan', { text: dagFile, ...(Object.keys(files).length ? { code: files } : {}) }))
    } catch (failure) {
      setError(failure instanceof ApiError ? failure : new ApiError(0, 'unexpected', String(failure)))
    } finally {
      setBusy(false)
    }
  }
  const take = async (files: File[]) => {
    const read = await Promise.all(files.map(async (file) => ({ path: pathOf(file), text: await file.text() })))
    const dagFile = read.find((file) => /\.ya?ml$/.test(file.path))?.text ?? text
    const found = { ...code, ...Object.fromEntries(read.filter((file) => file.path.endsWith('.py')).map((file) => [file.path, file.text])) }
    setText(dagFile)
    setCode(found)
    if (dagFile) await show(dagFile, found)
  }
  const onDrop = (event: DragEvent) => {
    event.preventDefault()
    setOver(false)
    void take([...(event.dataTransfer?.files ?? [])])
  }
  return (
    <section class="card plan">
      <h2>What would a file change?</h2>
      <div class={over ? 'drop over' : 'drop'} onDragOver={(event) => (event.preventDefault(), setOver(true))} onDragLeave={() => setOver(false)} onDrop={onDrop}>
        <textarea aria-label="DAG file" placeholder="Paste a DAG file, or drop it here, with the Python modules of its functions" rows={text ? 8 : 3} spellcheck={false} value={text}
          onInput={(event) => setText(event.currentTarget.value)} />
        <div class="actions">
          <Button look="primary" icon="deploys" disabled={!text.trim() || busy} onClick={() => void show(text, code)}>{busy ? 'Planning…' : 'Plan'}</Button>
          <Button onClick={() => chooser.current?.click()}>Choose files…</Button>
          <input ref={chooser} type="file" multiple hidden accept=".yaml,.yml,.py" aria-label="Files" onChange={(event) => void take([...(event.currentTarget.files ?? [])])} />
          {modules.length > 0 && <span class="muted small">with {counted(modules.length, 'module')}</span>}
          {(text || modules.length > 0) && <Button look="ghost" icon="close" onClick={() => (setText(''), setCode({}), setPlan(undefined), setError(undefined))}>Clear</Button>}
        </div>
      </div>
      {error && <Problem error={error} />}
      {plan && dag && plan.dag !== dag && <p class="said-box is-held">This is a file of the DAG {plan.dag}, not of {dag}.</p>}
      {plan && <Planned plan={plan} withoutCode={modules.length === 0} />}
    </section>
  )
}

/** Modules of a folder are named from below the folder `code`, as the command line does it. */
function pathOf(file: File): string {
  const path = file.webkitRelativePath || file.name
  const at = path.lastIndexOf('code/')
  return at >= 0 ? path.slice(at + 5) : file.name
}

function Planned({ plan, withoutCode }: { plan: PlanResponse; withoutCode: boolean }) {
  const { data } = useData<GraphResponse>(withParameters('/api/v1/graph', plan.deployed_version ? { dag: plan.dag } : {}))
  const { steps, unseen } = useMemo(() => asFarAsKnown(plan.steps, withoutCode), [plan, withoutCode])
  const diff = useMemo(() => (steps && data ? planned(plan.dag, plan.deployed_version ? data : { jobs: [], datasets: [] }, steps) : undefined), [data, plan])
  return (
    <div class="stack">
      {plan.blocked && <p class="said-box is-dead" role="alert"><strong>A deploy would be refused.</strong> {sentence(plan.blocked)} <code>{plan.blocked_code}</code></p>}
      {plan.noop ? (
        <p class="said-box">{plan.being_built ? `Version ${plan.being_built} of it is being built; a deploy changes nothing.` : `Nothing would change: version ${plan.deployed_version} is this file.`}</p>
      ) : (
        <>
          {unseen.length > 0 && (
            <p class="said-box">
              The code of {unseen.join(', ')} is not compared, since it was deployed with modules, and the file came without: drop them too. If it changed, more is computed anew than is shown here.
            </p>
          )}
          {steps && <Summary steps={steps} />}
          {diff && diff.graph.nodes.length > 0 && <Diff {...diff} />}
          {steps && <Changes steps={steps} />}
          {!plan.blocked && <p class="muted">To deploy it: <code>traceplane deploy FILE</code></p>}
        </>
      )}
    </div>
  )
}

/** Without modules, nobody knows whether the code of a job changed: only what else changes is shown, and what follows. */
function asFarAsKnown(steps: PlanSteps | undefined, withoutCode: boolean): { steps?: PlanSteps; unseen: string[] } {
  if (!steps || !withoutCode) return { steps, unseen: [] }
  const known = steps.rebuilt.map((one) => ({ ...one, changes: (one.changes ?? []).filter((change) => change.field !== 'code') }))
  const sure = new Set(known.filter((one) => one.changes.length > 0).map((one) => one.job))
  for (let before = -1; before !== sure.size; ) {
    before = sure.size
    for (const one of known) if ((one.downstream_of ?? []).some((name) => sure.has(name))) sure.add(one.job)
  }
  const rebuilt = known.filter((one) => sure.has(one.job))
  const rest = steps.rebuilt.filter((one) => !sure.has(one.job))
  const written = new Set(rebuilt.flatMap((one) => one.writes ?? []))
  return {
    steps: { ...steps, rebuilt, unchanged: [...steps.unchanged, ...rest.map((one) => one.job)], computed_anew: steps.computed_anew.filter((one) => written.has(one.dataset)) },
    unseen: rest.filter((one) => one.changes?.length).map((one) => one.job),
  }
}

/** A version that is being built beside the one that serves. */
export function BuildingDiff({ dag }: { dag: string }) {
  const concerns = (changed: { dags?: string[] }) => concernsDag(changed, dag)
  const building = useData<GraphResponse>(withParameters('/api/v1/graph', { dag, building: 'true' }), concerns)
  const serving = useData<GraphResponse>(withParameters('/api/v1/graph', { dag }), concerns)
  const diff = useMemo(() => (building.data && serving.data ? built(dag, serving.data, building.data) : undefined), [building.data, serving.data, dag])
  if (!diff) return <Loading lines={3} />
  return diff.graph.nodes.length ? <Diff {...diff} /> : null
}

interface Compared {
  graph: ReturnType<typeof graphOf>
  changes: Map<string, Change>
}

function Diff({ graph, changes }: Compared) {
  const [chosen, setChosen] = useState<string>()
  const present = (Object.keys(WORDS) as Change[]).filter((change) => [...changes.values()].includes(change))
  return (
    <div class="diff">
      <ul class="diff-key">
        {present.map((change) => <li key={change}><span class={`swatch diff-${change}`} />{WORDS[change]}</li>)}
        <li><span class="swatch diff-none" />Unchanged</li>
      </ul>
      <div class="diff-graph">
        <GraphView graph={graph} chosen={chosen} changes={changes} choose={setChosen} open={(node) => node.kind === 'dataset' && go(address.dataset(node.name))} />
      </div>
    </div>
  )
}

function planned(dag: string, serving: GraphResponse, steps: PlanSteps): Compared {
  const changes = new Map<string, Change>()
  const job = (one: JobChangeView): GraphJob => ({
    dag, job: one.job, version: 0, runtime: one.runtime, operator: one.operator,
    activation: one.reads?.length ? 'reactive' : 'source', generated_for: one.generated_for,
    reads: (one.reads ?? []).map((dataset) => ({ dataset })), writes: one.writes ?? [],
  })
  const newer = new Map([...steps.added, ...steps.rebuilt, ...steps.in_place].map((one) => [one.job, one]))
  const jobs = [
    ...serving.jobs.filter((one) => one.dag === dag).map((one) => {
      const step = newer.get(one.job)
      return step ? { ...one, operator: step.operator, runtime: step.runtime, reads: roles(one, step), writes: step.writes ?? one.writes, hold: undefined, pause: undefined } : one
    }),
    ...steps.added.map(job),
  ]
  for (const one of steps.added) changes.set(`job:${dag}/${one.job}`, 'added')
  for (const one of steps.in_place) changes.set(`job:${dag}/${one.job}`, 'in_place')
  for (const one of steps.removed) changes.set(`job:${dag}/${one.job}`, 'removed')
  for (const one of steps.rebuilt) changes.set(`job:${dag}/${one.job}`, one.changes?.length ? 'breaking' : 'rebuilt')
  for (const one of steps.rebuilt) for (const name of one.writes ?? []) changes.set(`dataset:${name}`, 'rebuilt')
  for (const one of steps.datasets_changed) if (!changes.has(`dataset:${one.dataset}`)) changes.set(`dataset:${one.dataset}`, 'in_place')
  for (const name of steps.datasets_added) changes.set(`dataset:${name}`, 'added')
  for (const name of steps.datasets_removed) changes.set(`dataset:${name}`, 'removed')
  return { graph: graphOf(withDatasets(dag, jobs, serving), undefined), changes }
}

const roles = (one: GraphJob, step: JobChangeView) => (step.reads ?? []).map((dataset) => one.reads?.find((read) => read.dataset === dataset) ?? { dataset })

function built(dag: string, serving: GraphResponse, building: GraphResponse): Compared {
  const changes = new Map<string, Change>()
  const there = new Set(building.jobs.map((one) => one.job))
  const gone = serving.jobs.filter((one) => one.dag === dag && !there.has(one.job))
  for (const one of building.jobs) {
    if (!one.change) continue
    changes.set(`job:${dag}/${one.job}`, one.change)
    if (one.change !== 'in_place') for (const name of one.writes ?? []) changes.set(`dataset:${name}`, one.change)
  }
  for (const one of gone) {
    changes.set(`job:${dag}/${one.job}`, 'removed')
    for (const name of one.writes ?? []) if (!changes.has(`dataset:${name}`)) changes.set(`dataset:${name}`, 'removed')
  }
  return { graph: graphOf(withDatasets(dag, [...building.jobs, ...gone], serving), undefined), changes }
}

function withDatasets(dag: string, jobs: GraphJob[], serving: GraphResponse): GraphResponse {
  const known = new Map(serving.datasets.map((one) => [one.dataset, one]))
  const used = new Set(jobs.flatMap((one) => [...(one.reads ?? []).map((read) => read.dataset), ...(one.writes ?? [])]))
  return { jobs, datasets: [...used].sort().map((name) => known.get(name) ?? { dataset: name, dag, storage: 'parquet' }) }
}

function Summary({ steps }: { steps: PlanSteps }) {
  const parts: [Change, number][] = [
    ['added', steps.added.length],
    ['breaking', steps.rebuilt.filter((one) => one.changes?.length).length],
    ['rebuilt', steps.rebuilt.filter((one) => !one.changes?.length).length],
    ['in_place', steps.in_place.length],
    ['removed', steps.removed.length],
  ]
  return (
    <ul class="facts-line" aria-label="Jobs">
      {parts.filter(([, number]) => number > 0).map(([change, number]) => (
        <li key={change} class={`diff-${change}`}><strong>{count(number)}</strong> {WORDS[change].toLowerCase()}{change === 'breaking' && number > 1 ? 's' : ''}</li>
      ))}
      <li><strong>{count(steps.unchanged.length)}</strong> unchanged</li>
    </ul>
  )
}

function Changes({ steps }: { steps: PlanSteps }) {
  const listed = [
    ...steps.added.map((one) => ({ change: 'added' as Change, one })),
    ...steps.rebuilt.map((one) => ({ change: (one.changes?.length ? 'breaking' : 'rebuilt') as Change, one })),
    ...steps.in_place.map((one) => ({ change: 'in_place' as Change, one })),
    ...steps.removed.map((one) => ({ change: 'removed' as Change, one })),
  ]
  return (
    <>
      {steps.computed_anew.length > 0 && (
        <p class="said-box is-held">
          Computed anew:{' '}
          {steps.computed_anew.map((one) => `${one.dataset} (${counted(one.scopes, 'scope')}, ${brief(one.rows)} rows, ${bytes(one.bytes)})`).join(', ')}.
          The serving version serves until that is done.
        </p>
      )}
      {(steps.dropped ?? []).length > 0 && <p class="said-box is-dead">Readers would lose {(steps.dropped ?? []).map((one) => one.dataset).join(', ')}.</p>}
      {steps.readers.map((one) => (
        <p class="said-box is-held" key={`${one.dag} ${one.job} ${one.dataset}`}>
          {one.dag}/{one.job} reads {one.dataset}{one.loses_it ? ', which would have no job' : ' and follows at the cutover'}.
        </p>
      ))}
      <ul class="changes">
        {listed.map(({ change, one }) => (
          <li key={one.job} class={`change diff-${change}`}>
            <p><strong>{one.job}</strong> <span class="muted">{one.operator} · {one.runtime}</span> <span class="tag">{WORDS[change].toLowerCase()}</span></p>
            {(one.downstream_of ?? []).length > 0 && <p class="small">because of {one.downstream_of!.join(', ')}</p>}
            {(one.changes ?? []).map((field) => (
              <p class="small field-change" key={field.field}>
                <code>{field.field}</code> {field.old !== undefined && <del>{field.old}</del>} {field.new !== undefined && <><Icon name="right" /><ins>{field.new}</ins></>}
              </p>
            ))}
          </li>
        ))}
      </ul>
    </>
  )
}
