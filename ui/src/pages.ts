// The pages, in the order of the navigation. `key`: behind `g`, on the keyboard. `for`: who has the rights for it.
import type { IconName } from './icons'
import { isAdmin, setsSecrets } from './session'

export interface PageEntry {
  path: string
  name: string
  icon: IconName
  key: string
  for?: () => boolean
}

export const PAGES: PageEntry[] = [
  { path: '/graph', name: 'Graph', icon: 'graph', key: 'g' },
  { path: '/tasks', name: 'Tasks', icon: 'tasks', key: 't' },
  { path: '/datasets', name: 'Datasets', icon: 'dataset', key: 'd' },
  { path: '/events', name: 'Events', icon: 'events', key: 'e' },
  { path: '/deploys', name: 'Deploys', icon: 'deploys', key: 'v' },
  { path: '/queries', name: 'Queries', icon: 'queries', key: 'q' },
  { path: '/triggers', name: 'Triggers', icon: 'triggers', key: 'r' },
  { path: '/alerts', name: 'Alerts', icon: 'alerts', key: 'a' },
  { path: '/dead-letters', name: 'Dead letters', icon: 'letters', key: 'l' },
  { path: '/health', name: 'Health', icon: 'health', key: 'h' },
  { path: '/people', name: 'People', icon: 'people', key: 'p', for: isAdmin },
  { path: '/secrets', name: 'Secrets', icon: 'secret', key: 's', for: setsSecrets },
  { path: '/channels', name: 'Channels', icon: 'channel', key: 'c', for: isAdmin },
  { path: '/audit', name: 'Audit', icon: 'audit', key: 'u', for: isAdmin },
]

export const pagesOfReader = (): PageEntry[] => PAGES.filter((page) => page.for?.() ?? true)
