// Light or dark: as the system has it, until somebody chooses.
import { signal } from '@preact/signals'

type Theme = 'light' | 'dark'
const NAME = 'traceplane-theme'
const system = matchMedia('(prefers-color-scheme: dark)')
const chosen = localStorage.getItem(NAME)

export const theme = signal<Theme>(chosen === 'dark' || chosen === 'light' ? chosen : system.matches ? 'dark' : 'light')

theme.subscribe((value) => {
  document.documentElement.dataset.theme = value
})
system.addEventListener('change', () => {
  if (localStorage.getItem(NAME) === null) theme.value = system.matches ? 'dark' : 'light'
})

export function switchTheme(): void {
  theme.value = theme.value === 'dark' ? 'light' : 'dark'
  localStorage.setItem(NAME, theme.value)
}
