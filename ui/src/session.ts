// Who is signed in, and signing in by a link.
import { signal } from '@preact/signals'
import { ApiError, call, get, mayBeSignedIn, signedOut } from './api'
import { forgetAll } from './data'
import type { WhoAmI } from './types'

export const who = signal<WhoAmI | undefined>(undefined)
export const failure = signal<ApiError | undefined>(undefined)

/** A link of somebody else than the browser is signed in as: its reader decides. */
export const otherLink = signal<{ code: string; of: string; known: WhoAmI } | undefined>(undefined)

const tabs = new BroadcastChannel('traceplane-session')
tabs.onmessage = () => location.reload() // another tab has signed in as somebody else

const CODE = /^#sign-in=([A-Za-z0-9_-]+)$/

// A link that is opened in a tab that shows `/` already changes nothing but what stands behind the `#`.
addEventListener('hashchange', () => void (CODE.test(location.hash) && begin()))

/** Exchanges the code of a link for a session, if the address has one, and asks who this is. */
export async function begin(): Promise<void> {
  const code = CODE.exec(location.hash)?.[1]
  try {
    if (code !== undefined) {
      history.replaceState(null, '', location.pathname + location.search) // not for the history of the browser
      if (!(await enter(code))) return
    }
    who.value = await get<WhoAmI>('/api/v1/whoami')
    signedOut.value = false
    failure.value = undefined
  } catch (error) {
    failure.value = error instanceof ApiError ? error : new ApiError(0, 'unexpected', String(error))
    if (code !== undefined && failure.value.status === 401) {
      // The link may be an old one, and the session of this browser still good.
      const known = await get<WhoAmI>('/api/v1/whoami').catch(() => undefined)
      if (known) {
        who.value = known
        signedOut.value = false
        failure.value = undefined
      }
    }
  }
}

/** Whether the browser is signed in by the link; otherwise its reader is asked. */
async function enter(code: string): Promise<boolean> {
  const answer = mayBeSignedIn() ? await fetch('/api/v1/whoami') : undefined
  const known = answer?.ok ? ((await answer.json()) as WhoAmI) : undefined
  try {
    await call('POST', '/auth/browser', known ? { code, signed_in: { org: known.org, name: known.name } } : { code })
    return true
  } catch (error) {
    if (!known || !(error instanceof ApiError) || error.code !== 'sign_in.other_person') throw error
    otherLink.value = { code, of: error.value ?? '', known }
    return false
  }
}

export async function agreeToLink(): Promise<void> {
  const { code } = otherLink.value!
  otherLink.value = undefined
  try {
    await call('POST', '/auth/browser', { code })
    forgetAll()
    tabs.postMessage('changed')
  } catch (error) {
    failure.value = error instanceof ApiError ? error : new ApiError(0, 'unexpected', String(error))
  }
  await begin()
}

export async function stay(): Promise<void> {
  otherLink.value = undefined
  await begin()
}

export async function leave(): Promise<void> {
  await call('POST', '/auth/logout')
  who.value = undefined
  failure.value = undefined
  forgetAll()
  signedOut.value = true
}

/** Whether the person may change things; the gateway decides in any case. */
export const mayWrite = (): boolean => who.value?.role === 'writer' || who.value?.role === 'admin'
export const isAdmin = (): boolean => who.value?.role === 'admin'

const RESERVED = ['admin', 'writer', 'reader']

/** A role of the organization's own may be allowed to set some. */
export const setsSecrets = (): boolean => isAdmin() || (who.value?.roles ?? []).some((role) => !RESERVED.includes(role))
