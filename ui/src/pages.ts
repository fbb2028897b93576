// The pages, in the order of the navigation. `key`: behind `g`, on the keyboard.
import type { IconName } from './icons'

export const PAGES: { path: string; name: string; icon: IconName; key: string }[] = [
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
]
