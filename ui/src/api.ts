// Calls of the public API, with the session of this browser.
import { signal } from '@preact/signals'

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly value?: string,
    readonly nextStep?: string,
    /** Of a file, where there may be several. */
    readonly problems: FileProblem[] = [],
  ) {
    super(message)
  }
}

export interface FileProblem {
  code: string
  message: string
  line: number
  column: number
  suggestion?: string
}

/** Whether the gateway has refused to say who this browser is. */
export const signedOut = signal(false)

const CSRF = /(?:^|; )(?:__Host-)?traceplane_csrf=([^;]*)/

/** A browser without a session is not asked who it is. */
export const mayBeSignedIn = (): boolean => CSRF.test(document.cookie)

export async function call<Answer>(method: string, path: string, body?: unknown): Promise<Answer> {
  const answer = await send(method, path, body)
  if (answer.status === 204) return undefined as Answer
  return (await answer.json()) as Answer
}

/** The answer as it comes, if it is none of an error. */
export async function send(method: string, path: string, body?: unknown, more: { headers?: Record<string, string>; signal?: AbortSignal } = {}): Promise<Response> {
  const headers: Record<string, string> = { ...more.headers }
  if (method !== 'GET') {
    headers['x-csrf-token'] = CSRF.exec(document.cookie)?.[1] ?? ''
    headers['content-type'] = 'application/json'
  }
  let answer: Response
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: 'same-origin',
      signal: more.signal,
    })
  } catch {
    if (more.signal?.aborted) throw new ApiError(0, 'stopped', 'it was stopped')
    throw new ApiError(0, 'unreachable', 'the gateway does not answer', undefined, 'check that it runs')
  }
  if (!answer.ok) throw await asError(answer)
  return answer
}

async function asError(answer: Response): Promise<ApiError> {
  if (answer.status === 401) signedOut.value = true
  return errorOf(answer.status, await answer.text().catch(() => ''))
}

/** What an error's body says. */
export function errorOf(status: number, body: string): ApiError {
  try {
    const { error } = JSON.parse(body) as { error: Record<string, unknown> }
    const text = (name: string) => (error[name] === undefined ? undefined : String(error[name]))
    return new ApiError(status, text('code') ?? '', text('message') ?? '', text('value'), text('next_step'), (error['problems'] as FileProblem[] | undefined) ?? [])
  } catch {
    return new ApiError(status, `http.${status}`, 'the gateway answered with an error')
  }
}

export const get = <Answer>(path: string) => call<Answer>('GET', path)
export const post = <Answer>(path: string, body: unknown) => call<Answer>('POST', path, body)

/** A path with a query; what is undefined or empty is left out. */
export function withParameters(path: string, parameters: Record<string, string | number | undefined>): string {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== '')
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString()
  return query ? `${path}?${query}` : path
}
