// Addresses are paths with a query, so that every view can be shared as a link. No library: a signal and `history`.
import { signal } from '@preact/signals'

export interface Place {
  path: string
  query: URLSearchParams
}

const read = (): Place => ({ path: location.pathname, query: new URLSearchParams(location.search) })

export const place = signal<Place>(read())
addEventListener('popstate', () => {
  place.value = read()
})

export function go(address: string, how: 'push' | 'replace' = 'push'): void {
  const before = place.peek().path
  if (how === 'push') history.pushState(null, '', address)
  else history.replaceState(null, '', address)
  place.value = read()
  if (place.peek().path !== before) {
    scrollTo(0, 0)
    // Whoever uses a screen reader or the keyboard is at the new page, not where its link was.
    requestAnimationFrame(() => document.querySelector<HTMLElement>('main')?.focus({ preventScroll: true }))
  }
}

/** The same page with some of its query changed; empty values are left out. */
export function withQuery(changes: Record<string, string | undefined>): string {
  const query = new URLSearchParams(place.peek().query)
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value)
    else query.delete(name)
  }
  const text = query.toString()
  return place.peek().path + (text ? `?${text}` : '')
}

export function setQuery(changes: Record<string, string | undefined>): void {
  go(withQuery(changes), 'replace')
}

export const address = {
  task: (id: string) => `/tasks/${id}`,
  tasks: (filters: Record<string, string>) => `/tasks?${new URLSearchParams(filters)}`,
  event: (id: string) => `/events/${id}`,
  dataset: (name: string) => `/datasets/${encodeURIComponent(name)}`,
  graph: (filters: Record<string, string>) => `/graph?${new URLSearchParams(filters)}`,
  deploys: (dag: string) => `/deploys/${encodeURIComponent(dag)}`,
}
