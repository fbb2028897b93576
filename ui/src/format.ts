// Numbers, sizes and times as people read them.

const whole = new Intl.NumberFormat('en')
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 })

export const count = (n: number): string => whole.format(n)
export const brief = (n: number): string => (Math.abs(n) < 10_000 ? whole.format(n) : short.format(n))
export const counted = (n: number, one: string, many = `${one}s`): string => `${count(n)} ${n === 1 ? one : many}`

export function bytes(n: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB']
  let unit = 0
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1000
    unit += 1
  }
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`
}

export function duration(ms: number): string {
  if (ms < 0) ms = 0
  if (ms < 1000) return `${Math.round(ms)} ms`
  if (ms < 9_950) return `${(ms / 1000).toFixed(1)} s`
  const s = Math.round(ms / 1000)
  if (s < 60) return `${s} s`
  const m = Math.floor(s / 60)
  if (m < 60) return `${m} min ${s % 60} s`
  const h = Math.floor(m / 60)
  if (h < 48) return `${h} h ${m % 60} min`
  return `${Math.floor(h / 24)} d ${h % 24} h`
}

const AGO: [number, Intl.RelativeTimeFormatUnit][] = [
  [86_400_000 * 365, 'year'],
  [86_400_000 * 30, 'month'],
  [86_400_000, 'day'],
  [3_600_000, 'hour'],
  [60_000, 'minute'],
  [1_000, 'second'],
]
const relative = new Intl.RelativeTimeFormat('en', { numeric: 'always', style: 'narrow' })

export function ago(at: Date, now: number): string {
  const ms = at.getTime() - now
  if (Math.abs(ms) < 5_000) return 'now'
  for (const [size, unit] of AGO) if (Math.abs(ms) >= size) return relative.format(Math.round(ms / size), unit)
  return 'now'
}

const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' })
const day = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', year: 'numeric' })

/** In the reader's zone. */
export const timeOfDay = (at: Date): string => clock.format(at)
export const dayOf = (at: Date): string => day.format(at)

export function exact(at: Date): string {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone
  return `${dayOf(at)} ${timeOfDay(at)}.${String(at.getMilliseconds()).padStart(3, '0')} (${zone})\n${at.toISOString()}`
}

/** Whether the dispatcher keeps a dataset for a job: `shop.enrich#scopes` says which scopes it has found for it. */
export const isKept = (dataset: string): boolean => dataset.includes('#')
export const nameOfDataset = (dataset: string): string => dataset.replace(/^(.+)#(.+)$/, '$2 of $1')
