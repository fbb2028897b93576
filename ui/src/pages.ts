// The pages, in the order of the navigation. `key`: behind `g`, on the keyboard.
import type { IconName } from './icons'

export const PAGES: { path: string; name: string; icon: IconName; key: string }[] = [
  { path: '/graph', name: 'Graph', icon: 'graph', key: 'g' },
  { path: '/tasks', name: 'Tasks', icon: 'tasks', key: 't' },
]
