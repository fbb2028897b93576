// The frame around every page: navigation, who is signed in, whether changes arrive.
import { signal } from '@preact/signals'
import { useEffect, useState } from 'preact/hooks'
import { signedOut } from './api'
import { afterThePage, useData } from './data'
import { brief } from './format'
import { Icon } from './icons'
import { connection, start } from './live'
import { A, Empty, Loading, Problem, Toasts } from './parts'
import { Help, Palette, onKey, overlay } from './palette'
import { PAGES, pagesOfReader } from './pages'
import { AlertPage, AlertsPage } from './pages/alerts'
import { AuditPage } from './pages/audit'
import { ChannelsPage } from './pages/channels'
import { DatasetPage, DatasetsPage } from './pages/datasets'
import { DagPage, DeploysPage } from './pages/deploys'
import { EffectsPage, EventsPage } from './pages/events'
import { GraphPage } from './pages/graph'
import { HealthPage } from './pages/health'
import { LettersPage } from './pages/letters'
import { PeoplePage } from './pages/people'
import { QueriesPage } from './pages/queries'
import { SecretsPage } from './pages/secrets'
import { TaskPage } from './pages/task'
import { TasksPage } from './pages/tasks'
import { TriggersPage } from './pages/triggers'
import { place } from './router'
import { begin, failure, isAdmin, leave, otherLink, who } from './session'
import { Mark, OtherLink, SignIn } from './signin'
import { switchTheme, theme } from './theme'
import type { StatusResponse } from './types'

const menuOpen = signal(false)

export function App() {
  useEffect(() => {
    void begin()
    document.addEventListener('keydown', onKey)
    return () => document.removeEventListener('keydown', onKey)
  }, [])
  const known = who.value !== undefined
  useEffect(() => {
    if (known) start()
  }, [known])

  if (otherLink.value) return <OtherLink />
  if (signedOut.value) return <SignIn />
  if (!known) {
    if (failure.value && failure.value.status !== 401)
      return (
        <main class="sign-in">
          <Problem error={failure.value} retry={() => void begin()} />
        </main>
      )
    return <Loading />
  }
  return (
    <div class="frame">
      <a class="skip" href="#main">
        Skip to the page
      </a>
      <Side />
      <main id="main" tabIndex={-1}>
        <Current />
      </main>
      {overlay.value === 'palette' && <Palette />}
      {overlay.value === 'help' && <Help />}
      <Toasts />
    </div>
  )
}

function Current() {
  const [first = '', second = ''] = place.value.path.slice(1).split('/')
  const name = decoded(second)
  const dag = place.value.query.get('dag')
  useEffect(() => {
    const page = PAGES.find((one) => one.path === `/${first}`)
    document.title = name || page ? `${name || page?.name} · Traceplane` : 'Traceplane'
  }, [first, name])
  switch (first) {
    case '':
    case 'graph':
      return <GraphPage />
    case 'tasks':
      return name ? <TaskPage key={name} id={name} /> : <TasksPage />
    case 'datasets':
      return name ? <DatasetPage key={name} name={name} /> : <DatasetsPage />
    case 'events':
      return name ? <EffectsPage key={name} id={name} /> : <EventsPage />
    case 'deploys':
      return name || dag ? <DagPage key={name || dag} dag={name || dag!} /> : <DeploysPage />
    case 'queries':
      return <QueriesPage />
    case 'triggers':
      return <TriggersPage />
    case 'alerts':
      return name ? <AlertPage key={name} id={name} /> : <AlertsPage />
    case 'dead-letters':
      return <LettersPage />
    case 'health':
      return <HealthPage />
    case 'people':
      return isAdmin() ? <PeoplePage /> : <ForAdmins />
    case 'secrets':
      return <SecretsPage />
    case 'channels':
      return isAdmin() ? <ChannelsPage /> : <ForAdmins />
    case 'audit':
      return isAdmin() ? <AuditPage /> : <ForAdmins />
    default:
      return (
        <Empty icon="search" title="There is no such page">
          <A href="/graph">Go to the graph</A>
        </Empty>
      )
  }
}

/** What somebody typed into the address may be no encoding of anything. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

const ForAdmins = () => (
  <Empty icon="held" title="This page is for admins">
    <p>Ask an admin of {who.value!.org} for the role, or for what you need from it.</p>
  </Empty>
)

function Side() {
  const [first = ''] = place.value.path.slice(1).split('/')
  const here = first === '' ? '/graph' : `/${first}`
  const [isAsked, setAsked] = useState(false)
  useEffect(() => void afterThePage().then(() => setAsked(true)), [])
  const status = useData<StatusResponse>(isAsked ? '/api/v1/status?datasets=false' : null, (changed) => (changed.jobs ?? []).length > 0)
  const open = (status.data?.failed ?? []).filter((one) => one.state === 'dead').reduce((sum, one) => sum + one.tasks, 0)
  const marks: Record<string, number> = { '/tasks': open }
  return (
    <aside class={menuOpen.value ? 'side open' : 'side'}>
      <div class="brand">
        <A href="/graph" class="brand-link">
          <Mark />
          <span>Traceplane</span>
        </A>
        <button type="button" class="menu" aria-expanded={menuOpen.value} aria-controls="menu"
          onClick={() => (menuOpen.value = !menuOpen.value)} aria-label="Menu">
          <Icon name="menu" />
        </button>
      </div>
      <div id="menu" class="menu-body">
        <button type="button" class="finder" onClick={() => (overlay.value = 'palette')}>
          <Icon name="search" />
          <span>Go to…</span>
          <kbd>Ctrl K</kbd>
        </button>
        <nav aria-label="Pages" onClick={() => (menuOpen.value = false)}>
          {pagesOfReader().map((page) => (
            <A key={page.path} href={page.path} aria-current={page.path === here ? 'page' : undefined}>
              <Icon name={page.icon} />
              {page.name}
              {(marks[page.path] ?? 0) > 0 && (
                <span class="mark-count" title={`${marks[page.path]} need attention`}>
                  {brief(marks[page.path]!)}
                </span>
              )}
            </A>
          ))}
        </nav>
        <div class="side-foot">
          <Live />
          <div class="who">
            <span class="who-name" title={`${who.value!.name} (${who.value!.role ?? 'no role'})`}>
              <strong>{who.value!.org}</strong>
              <span class="muted">{who.value!.name}</span>
            </span>
            <button type="button" class="tool" onClick={switchTheme} aria-label={theme.value === 'dark' ? 'Light colours' : 'Dark colours'}
              title={theme.value === 'dark' ? 'Light colours' : 'Dark colours'}>
              <Icon name={theme.value === 'dark' ? 'sun' : 'moon'} />
            </button>
            <button type="button" class="tool" onClick={() => (overlay.value = 'help')} aria-label="Keys and help" title="Keys and help (?)">
              <Icon name="help" />
            </button>
            <button type="button" class="tool" onClick={() => void leave()} aria-label="Sign out" title="Sign out">
              <Icon name="out" />
            </button>
          </div>
        </div>
      </div>
    </aside>
  )
}

const SAID = { connecting: 'Connecting', live: 'Live', lost: 'No connection; trying again' }

function Live() {
  return (
    <div class={`live live-${connection.value}`} role="status">
      <span class="dot" />
      {SAID[connection.value]}
    </div>
  )
}
