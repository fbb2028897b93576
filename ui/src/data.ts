// What pages show: asked for once, kept for going back, and asked for anew when the gateway says that it changed.
import { useEffect, useRef, useState } from 'preact/hooks'
import { ApiError, get } from './api'
import { type Changed, listen } from './live'

export interface Loaded<Answer> {
  data?: Answer
  error?: ApiError
  loading: boolean
  reload: () => void
}

const SOONEST_MS = 900
const ANYWAY_MS = 20_000
const MOST_KEPT = 50
const kept = new Map<string, unknown>()

function keep(path: string, answer: unknown): void {
  kept.delete(path)
  kept.set(path, answer)
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value!)
}

export function forgetAll(): void {
  kept.clear()
}

let asked = 0
const waiting: (() => void)[] = []

async function answered<Answer>(path: string): Promise<Answer> {
  asked++
  try {
    return await get<Answer>(path)
  } finally {
    asked--
    if (!asked) for (const resume of waiting.splice(0)) resume()
  }
}

/** Once the page has what it asked for when it was opened. */
export const afterThePage = (): Promise<void> =>
  new Promise((resume) => setTimeout(() => (asked ? waiting.push(resume) : resume())))

/** The answer to a GET; `null` asks for nothing. `concerns` says which changes it has to do with. */
export function useData<Answer>(path: string | null, concerns?: (changed: Changed) => boolean): Loaded<Answer> {
  const [state, setState] = useState<{ path: string | null; data?: Answer; error?: ApiError; asked: boolean }>({
    path: null,
    asked: false,
  })
  const [again, setAgain] = useState(0)
  const latest = useRef(concerns) // what concerns a page may depend on what it has loaded
  latest.current = concerns

  useEffect(() => {
    if (path === null) return
    let over = false
    let timer: ReturnType<typeof setTimeout> | undefined
    let running = false
    let due = false
    let last = 0
    let took = 0

    const ask = async (): Promise<void> => {
      if (running) return void (due = true)
      running = true
      due = false
      const begun = performance.now()
      try {
        const data = await answered<Answer>(path)
        keep(path, data)
        if (!over) setState({ path, data, asked: true })
      } catch (error) {
        if (over) return
        const failure = error instanceof ApiError ? error : new ApiError(0, 'unexpected', String(error))
        setState((before) => ({ path, data: before.path === path ? before.data : undefined, error: failure, asked: true }))
      } finally {
        running = false
        last = performance.now()
        took = last - begun
        if (!over && due) later()
      }
    }
    // A slow answer is asked for less often.
    const later = (): void => {
      due = true
      if (timer !== undefined || running) return
      timer = setTimeout(
        () => {
          timer = undefined
          if (document.hidden) return // asked for when the page is looked at again
          void ask()
        },
        Math.max(0, last + Math.max(SOONEST_MS, took * 4) - performance.now()),
      )
    }
    const onVisible = () => {
      if (!document.hidden && due) later()
    }
    const stop = listen((changed) => latest.current?.(changed) && later())
    const anyway = setInterval(() => latest.current && later(), ANYWAY_MS)
    document.addEventListener('visibilitychange', onVisible)
    void ask()
    return () => {
      over = true
      stop()
      clearTimeout(timer)
      clearInterval(anyway)
      document.removeEventListener('visibilitychange', onVisible)
    }
  }, [path, again])

  const current = state.path === path ? state : { data: path === null ? undefined : (kept.get(path) as Answer), asked: false, error: undefined }
  return {
    data: current.data,
    error: current.error,
    loading: path !== null && !current.asked,
    reload: () => setAgain((n) => n + 1),
  }
}
