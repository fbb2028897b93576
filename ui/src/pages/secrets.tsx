// Secrets: set, allowed to jobs, removed, and never shown.
import { useState } from 'preact/hooks'
import { call, post } from '../api'
import { Confirm } from '../confirm'
import { useData } from '../data'
import { ChoiceField, listOf, TextField } from '../fields'
import { Button, Empty, Loading, Page, Problem, Time, toast } from '../parts'
import { isAdmin } from '../session'
import type { SecretRightsView, SecretSet, SecretsResponse, SecretView } from '../types'

type Question = { what: 'set'; of?: SecretView } | { what: 'rights' | 'remove'; of: SecretView }

const PLATFORM = 'platform/'

/** Where a secret is in the API. */
function pathOf(name: string): string {
  const [namespace, bare] = name.startsWith(PLATFORM) ? ['platform', name.slice(PLATFORM.length)] : ['user', name]
  return `/api/v1/secrets/${namespace}/${encodeURIComponent(bare)}`
}

export function SecretsPage() {
  const { data, error, loading, reload } = useData<SecretsResponse>('/api/v1/secrets')
  const [question, setQuestion] = useState<Question>()
  const close = () => (setQuestion(undefined), reload())
  const secrets = data?.secrets ?? []
  return (
    <Page title="Secrets" side={isAdmin() && <Button look="primary" icon="plus" onClick={() => setQuestion({ what: 'set' })}>Set a secret</Button>}>
      <p class="lead">A value goes in and never comes out. DAG files and channels refer to it as <code>{'${secret:NAME}'}</code>; it is where a job that may use it runs, and nowhere else.</p>
      {error && <Problem error={error} retry={reload} />}
      {loading && !data && <Loading />}
      {data && secrets.length === 0 && (
        <Empty icon="secret" title={isAdmin() ? 'No secret yet' : 'There is no secret of your roles'}>
          {isAdmin() ? <p>Addresses with keys, passwords and tokens belong here: <code>traceplane secret set NAME</code> does the same.</p> : <p>An admin decides which roles may set which secrets.</p>}
        </Empty>
      )}
      {secrets.length > 0 && (
        <div class="table-box">
          <table class="table">
            <thead><tr><th>Secret</th><th>Version</th><th>Set</th><th>Last used</th><th>Jobs that may use it</th><th>Roles that may set it</th><th><span class="hidden">Actions</span></th></tr></thead>
            <tbody>
              {secrets.map((one) => (
                <tr key={one.name}>
                  <td class="strong">{one.name}</td>
                  <td>{one.version ?? <span class="muted">—</span>}</td>
                  <td><Time at={one.set_at} /> {one.set_by && <span class="muted">by {one.set_by}</span>}</td>
                  <td>{one.last_used_at ? <Time at={one.last_used_at} /> : <span class="muted">never</span>}</td>
                  <td class="wrap">{one.allowed_jobs ? (one.allowed_jobs.join(', ') || 'none') : 'every job'}</td>
                  <td class="wrap">{(one.roles ?? []).join(', ') || <span class="muted">admins</span>}</td>
                  <td class="right">
                    <Button look="ghost" aria-label={`New value for ${one.name}`} onClick={() => setQuestion({ what: 'set', of: one })}>New value</Button>
                    {isAdmin() && <Button look="ghost" aria-label={`Rights of ${one.name}`} onClick={() => setQuestion({ what: 'rights', of: one })}>Rights</Button>}
                    {isAdmin() && <Button look="ghost" class="is-bad" aria-label={`Remove ${one.name}`} onClick={() => setQuestion({ what: 'remove', of: one })}>Remove</Button>}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {question?.what === 'set' && <SetSecret of={question.of} close={close} />}
      {question?.what === 'rights' && <Rights of={question.of} close={close} />}
      {question?.what === 'remove' && (
        <Confirm title={`Remove ${question.of.name}?`} yes="Remove" look="danger" close={close} agree={() => call('DELETE', pathOf(question.of.name))}>
          <p>All its versions are gone. Jobs and channels that refer to it fail until it is set again.</p>
        </Confirm>
      )}
    </Page>
  )
}

const warned = (warnings: string[] | undefined) => warnings?.length && toast(`Not there yet: ${warnings.join(', ')}`, true)

function SetSecret({ of, close }: { of?: SecretView; close: () => void }) {
  const [name, setName] = useState(of?.name ?? '')
  const [value, setValue] = useState('')
  const [jobs, setJobs] = useState('')
  const save = async () => {
    const set = await call<SecretSet>('PUT', pathOf(name.trim()), { value, ...(listOf(jobs).length ? { allowed_jobs: listOf(jobs) } : {}) })
    toast(`${set.name} is set${set.version === undefined ? '' : `: version ${set.version}`}`)
    warned(set.warnings)
  }
  return (
    <Confirm title={of ? `A new value for ${of.name}` : 'Set a secret'} yes="Set" agree={save} close={close}>
      {!of && <TextField label="Name" value={name} set={setName} required placeholder="mainnet_rpc" hint={<>Begin it with <code>platform/</code> for sources and channels of the platform itself.</>} />}
      <TextField label="Value" secret value={value} set={setValue} required hint="Nothing shows it again." />
      {!of && <TextField label="Jobs that may use it (optional)" value={jobs} set={setJobs} placeholder="shop/clean, market/*" hint="Without any, every job may." />}
      {of && <p class="muted small">Nothing is rebuilt. Tasks that start from now on get the new value.</p>}
    </Confirm>
  )
}

function Rights({ of, close }: { of: SecretView; close: () => void }) {
  const [which, setWhich] = useState(of.allowed_jobs ? 'some' : 'any')
  const [jobs, setJobs] = useState((of.allowed_jobs ?? []).join(', '))
  const [roles, setRoles] = useState((of.roles ?? []).join(', '))
  const save = async () => {
    const answer = await post<SecretRightsView>(`${pathOf(of.name)}/rights`, { ...(which === 'any' ? { any_job: true } : { allowed_jobs: listOf(jobs) }), roles: listOf(roles) })
    warned(answer.warnings)
  }
  return (
    <Confirm title={`Who may use ${of.name}`} yes="Save" agree={save} close={close}>
      <ChoiceField label="Jobs" value={which} set={setWhich} choices={[['any', 'every job'], ['some', 'only these']]} />
      {which === 'some' && <TextField label="Only these jobs" value={jobs} set={setJobs} placeholder="shop/clean, market/*, channel/team" />}
      <TextField label="Roles that may set it, besides admins" value={roles} set={setRoles} placeholder="none" />
    </Confirm>
  )
}
