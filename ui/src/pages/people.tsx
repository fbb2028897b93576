// Who belongs to the organization, what roles mean, and which tokens there are.
import { useState } from 'preact/hooks'
import { call, post } from '../api'
import { Confirm, Told } from '../confirm'
import { useData } from '../data'
import { ChoiceField, listOf, Tabs, tabOf, TextField } from '../fields'
import { Button, Copy, Empty, Loading, Page, Problem, Time, toast } from '../parts'
import { who } from '../session'
import type { IssuedToken, MembersResponse, MemberView, RolesResponse, TokensResponse, TokenView } from '../types'

const part = encodeURIComponent

export function PeoplePage() {
  const members = useData<MembersResponse>('/api/v1/members')
  const roles = useData<RolesResponse>('/api/v1/roles')
  const tokens = useData<TokensResponse>('/api/v1/tokens')
  const show = tabOf('members')
  const reload = () => (members.reload(), roles.reload(), tokens.reload())
  const names = (roles.data?.roles ?? []).map((one) => one.name)
  const problem = members.error ?? roles.error ?? tokens.error
  return (
    <Page title="People">
      <Tabs
        tabs={[
          { id: 'members', title: 'Members', count: members.data?.members.length },
          { id: 'roles', title: 'Roles', count: names.length },
          { id: 'tokens', title: 'Tokens', count: tokens.data?.tokens.length },
        ]}
      />
      {problem && <Problem error={problem} retry={reload} />}
        {show === 'members' && (members.data ? <Members members={members.data.members} roles={names} reload={reload} /> : !problem && <Loading />)}
        {show === 'roles' && (roles.data ? <Roles roles={roles.data} reload={reload} /> : !problem && <Loading />)}
        {show === 'tokens' && (tokens.data ? <Tokens tokens={tokens.data.tokens} members={members.data?.members ?? []} roles={names} reload={reload} /> : !problem && <Loading />)}
    </Page>
  )
}

// Members -----------------------------------------------------------------------------------------------

type Question = { what: 'add' } | { what: 'grant' | 'disable' | 'enable'; of: MemberView } | { what: 'withdraw'; of: MemberView; role: string }

function Members({ members, roles, reload }: { members: MemberView[]; roles: string[]; reload: () => void }) {
  const [question, setQuestion] = useState<Question>()
  const close = () => (setQuestion(undefined), reload())
  return (
    <>
      <div class="filters">
        <Button look="primary" icon="plus" onClick={() => setQuestion({ what: 'add' })}>Add a member</Button>
      </div>
      {members.length === 0 && (
        <Empty icon="people" title="Nobody is a member yet">
          <p>People sign in with your identity provider and become members, or you add them here and issue a token of theirs.</p>
        </Empty>
      )}
      {members.length > 0 && (
        <div class="table-box">
          <table class="table">
            <thead><tr><th>Member</th><th>Kind</th><th>Roles</th><th>Last seen</th><th>Since</th><th><span class="hidden">Actions</span></th></tr></thead>
            <tbody>
              {members.map((one) => (
                <tr key={one.name} class={one.disabled_at ? 'is-off' : ''}>
                  <td>
                    <strong>{one.name}</strong>
                    {one.email && <div class="muted small">{one.email}</div>}
                    {one.disabled_at && <div class="small muted">disabled <Time at={one.disabled_at} /></div>}
                  </td>
                  <td>{one.kind === 'service' ? 'service account' : 'person'}{one.issuer && <div class="muted small">signs in at {one.issuer}</div>}</td>
                  <td class="wrap">
                    <ul class="chips">
                      {one.roles.map((grant) => (
                        <li key={grant.role} class="chip" title={`given by ${grant.granted_by}`}>
                          {grant.role}
                          {grant.expires_at && <span class="muted">, ends <Time at={grant.expires_at} /></span>}
                          {grant.by_claim ? <span class="muted"> by sign-in</span> : (
                            <button type="button" aria-label={`Withdraw ${grant.role} from ${one.name}`} onClick={() => setQuestion({ what: 'withdraw', of: one, role: grant.role })}>×</button>
                          )}
                        </li>
                      ))}
                      {one.roles.length === 0 && <li class="muted">none: may do nothing</li>}
                    </ul>
                  </td>
                  <td><Time at={one.last_seen_at} /></td>
                  <td><Time at={one.created_at} /> <span class="muted">by {one.created_by}</span></td>
                  <td class="right">
                    {one.disabled_at ? (
                      <Button look="ghost" onClick={() => setQuestion({ what: 'enable', of: one })} aria-label={`Enable ${one.name}`}>Enable</Button>
                    ) : (
                      <>
                        <Button look="ghost" onClick={() => setQuestion({ what: 'grant', of: one })} aria-label={`Give a role to ${one.name}`}>Give a role</Button>
                        <Button look="ghost" class="is-bad" onClick={() => setQuestion({ what: 'disable', of: one })} aria-label={`Disable ${one.name}`}>Disable</Button>
                      </>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {question?.what === 'add' && <AddMember close={close} />}
      {question?.what === 'grant' && <Grant member={question.of} roles={roles} close={close} />}
      {question?.what === 'enable' && (
        <Confirm title={`Enable ${question.of.name}?`} yes="Enable" close={close} agree={() => call('PUT', `/api/v1/members/${part(question.of.name)}`, { kind: question.of.kind })}>
          <p>Its roles hold again. Tokens and sessions that ended stay ended.</p>
        </Confirm>
      )}
      {question?.what === 'disable' && (
        <Confirm title={`Disable ${question.of.name}?`} yes="Disable" look="danger" close={close} agree={() => call('DELETE', `/api/v1/members/${part(question.of.name)}`)}>
          <p>All tokens and sessions of {question.of.name} end at once and for good. What {question.of.name} has deployed goes on.</p>
        </Confirm>
      )}
      {question?.what === 'withdraw' && (
        <Confirm title={`Withdraw ${question.role} from ${question.of.name}?`} yes="Withdraw" look="danger" close={close}
          agree={() => call('DELETE', `/api/v1/members/${part(question.of.name)}/roles/${part(question.role)}`)}>
          <p>Calls of {question.of.name} that need it are refused from now on.</p>
        </Confirm>
      )}
    </>
  )
}

function AddMember({ close }: { close: () => void }) {
  const [name, setName] = useState('')
  const [email, setEmail] = useState('')
  const [kind, setKind] = useState('user')
  return (
    <Confirm title="Add a member" yes="Add" close={close}
      agree={async () => {
        await call('PUT', `/api/v1/members/${part(name)}`, { kind, ...(email ? { email } : {}) })
        toast(`${name} is a member. It may do nothing until you give it a role.`)
      }}>
      <TextField label="Name" value={name} set={setName} required placeholder="ada@example.com" />
      <ChoiceField label="Kind" value={kind} set={setKind} choices={[['user', 'a person'], ['service', 'a service account']]} />
      <TextField label="Email (optional)" value={email} set={setEmail} />
    </Confirm>
  )
}

const LASTS: [string, string][] = [['', 'until it is ended'], ['1h', 'an hour'], ['8h', 'eight hours'], ['1d', 'a day'], ['7d', 'a week'], ['30d', '30 days'], ['90d', '90 days'], ['365d', 'a year']]

function Grant({ member, roles, close }: { member: MemberView; roles: string[]; close: () => void }) {
  const open = roles.filter((role) => !member.roles.some((grant) => grant.role === role && !grant.expires_at))
  const [role, setRole] = useState(open.includes('reader') ? 'reader' : (open[0] ?? ''))
  const [lasts, setLasts] = useState('')
  return (
    <Confirm title={`Give ${member.name} a role`} yes="Give" close={close}
      agree={() => call('PUT', `/api/v1/members/${part(member.name)}/roles/${part(role)}`, lasts ? { lasts } : {})}>
      <ChoiceField label="Role" value={role} set={setRole} choices={open.map((one) => [one, one])} />
      <ChoiceField label="For" value={lasts} set={setLasts} choices={LASTS} />
    </Confirm>
  )
}

// Roles -------------------------------------------------------------------------------------------------

function Roles({ roles: { roles }, reload }: { roles: RolesResponse; reload: () => void }) {
  const [asked, setAsked] = useState<{ what: 'set' | 'delete'; name: string; includes: string; sees: boolean }>()
  const close = () => (setAsked(undefined), reload())
  return (
    <>
      <div class="filters">
        <Button look="primary" icon="plus" onClick={() => setAsked({ what: 'set', name: '', includes: 'reader', sees: false })}>Define a role</Button>
      </div>
      <div class="table-box">
        <table class="table">
          <thead><tr><th>Role</th><th>May call what a … may</th><th>Sees personal data</th><th class="right">Members</th><th>Since</th><th><span class="hidden">Actions</span></th></tr></thead>
          <tbody>
            {roles.map((one) => (
              <tr key={one.name}>
                <td class="strong">{one.name}</td>
                <td>{one.includes}</td>
                <td>{one.sees_pii ? 'yes' : 'no'}</td>
                <td class="right">{one.members}</td>
                <td>{one.reserved ? <span class="muted">always there</span> : <><Time at={one.created_at} /> <span class="muted">by {one.created_by}</span></>}</td>
                <td class="right">
                  {!one.reserved && (
                    <>
                      <Button look="ghost" aria-label={`Change ${one.name}`} onClick={() => setAsked({ what: 'set', name: one.name, includes: one.includes, sees: one.sees_pii })}>Change</Button>
                      <Button look="ghost" class="is-bad" aria-label={`Delete ${one.name}`} onClick={() => setAsked({ what: 'delete', name: one.name, includes: one.includes, sees: one.sees_pii })}>Delete</Button>
                    </>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {asked?.what === 'set' && <SetRole of={asked} close={close} />}
      {asked?.what === 'delete' && (
        <Confirm title={`Delete the role ${asked.name}?`} yes="Delete" look="danger" close={close} agree={() => call('DELETE', `/api/v1/roles/${part(asked.name)}`)}>
          <p>Nobody has it any more. It is refused while datasets or secrets name it.</p>
        </Confirm>
      )}
    </>
  )
}

function SetRole({ of, close }: { of: { name: string; includes: string; sees: boolean }; close: () => void }) {
  const [name, setName] = useState(of.name)
  const [includes, setIncludes] = useState(of.includes)
  const [sees, setSees] = useState(of.sees)
  return (
    <Confirm title={of.name ? `Change ${of.name}` : 'Define a role'} yes="Save" close={close}
      agree={() => call('PUT', `/api/v1/roles/${part(name)}`, { includes, sees_pii: sees })}>
      {!of.name && <TextField label="Name" value={name} set={setName} required placeholder="analyst" />}
      <ChoiceField label="May call what a … may" value={includes} set={setIncludes} choices={[['reader', 'reader'], ['writer', 'writer'], ['admin', 'admin']]} />
      <label class="check"><input type="checkbox" checked={sees} onChange={(event) => setSees(event.currentTarget.checked)} /> Its members see personal data</label>
      <p class="muted small">Which data it may read and write is said by <code>read_roles</code> and <code>write_roles</code> in DAG files.</p>
    </Confirm>
  )
}

// Tokens ------------------------------------------------------------------------------------------------

function Tokens({ tokens, members, roles, reload }: { tokens: TokenView[]; members: MemberView[]; roles: string[]; reload: () => void }) {
  const [asked, setAsked] = useState<'issue' | TokenView>()
  const [issued, setIssued] = useState<IssuedToken>()
  const close = () => (setAsked(undefined), reload())
  return (
    <>
      <div class="filters">
        <Button look="primary" icon="plus" onClick={() => setAsked('issue')}>Issue a token</Button>
      </div>
      {tokens.length === 0 && <Empty icon="secret" title="No token is valid"><p>Scripts and services sign in with tokens.</p></Empty>}
      {tokens.length > 0 && (
        <div class="table-box">
          <table class="table">
            <thead><tr><th>Token</th><th>Of</th><th>Rights</th><th>Last used</th><th>Ends</th><th>Issued</th><th><span class="hidden">Actions</span></th></tr></thead>
            <tbody>
              {tokens.map((one) => (
                <tr key={one.token_id}>
                  <td class="strong">{one.name}</td>
                  <td>{one.member ?? <span class="muted">nobody</span>}</td>
                  <td class="wrap">{one.roles?.join(', ') ?? 'those of the member'}{one.datasets && <div class="muted small">only {one.datasets.join(', ')}</div>}</td>
                  <td><Time at={one.last_used_at} /></td>
                  <td>{one.expires_at ? <Time at={one.expires_at} /> : <span class="muted">never</span>}</td>
                  <td><Time at={one.created_at} /> <span class="muted">by {one.created_by}</span></td>
                  <td class="right"><Button look="ghost" class="is-bad" aria-label={`Revoke ${one.name}`} onClick={() => setAsked(one)}>Revoke</Button></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {asked === 'issue' && <IssueToken members={members} roles={roles} close={close} issued={setIssued} />}
      {asked !== undefined && asked !== 'issue' && (
        <Confirm title={`Revoke ${asked.name}?`} yes="Revoke" look="danger" close={close} agree={() => call('DELETE', `/api/v1/tokens/${asked.token_id}`)}>
          <p>Whoever uses it is refused from now on.{asked.name === who.value?.name && ' Your own browser may be signed in with it.'}</p>
        </Confirm>
      )}
      {issued && (
        <Told title="The token" close={() => setIssued(undefined)}>
          <p>It is shown only now. Copy it to where it is needed.</p>
          <Copy text={issued.token} />
          {issued.warning && <p class="problem-line">{issued.warning}</p>}
        </Told>
      )}
    </>
  )
}

function IssueToken({ members, roles, close, issued }: { members: MemberView[]; roles: string[]; close: () => void; issued: (token: IssuedToken) => void }) {
  const [name, setName] = useState('')
  const [member, setMember] = useState('')
  const [role, setRole] = useState('reader')
  const [datasets, setDatasets] = useState('')
  const [lasts, setLasts] = useState('90d')
  const body = {
    name,
    ...(member ? { member } : {}),
    ...(role ? { roles: [role] } : {}),
    ...(listOf(datasets).length ? { datasets: listOf(datasets) } : {}),
    ...(lasts ? { lasts } : {}),
  }
  return (
    <Confirm title="Issue a token" yes="Issue" close={close} agree={async () => issued(await post<IssuedToken>('/api/v1/tokens', body))}>
      <TextField label="Name" value={name} set={setName} required placeholder="nightly-report" />
      <ChoiceField label="Of" value={member} set={setMember} choices={[['', 'nobody'], ...members.filter((one) => !one.disabled_at).map((one): [string, string] => [one.name, one.name])]} hint="A member's token has the roles that the member has at each call." />
      <ChoiceField label="With the role" value={role} set={setRole} choices={[...(member ? [['', 'all of the member'] as [string, string]] : []), ...roles.map((one): [string, string] => [one, one])]} />
      <TextField label="Only for datasets (optional)" value={datasets} set={setDatasets} placeholder="shop.*" />
      <ChoiceField label="Valid" value={lasts} set={setLasts} choices={LASTS} />
    </Confirm>
  )
}
