// Who is signed in, and signing in by a link.
import { signal } from '@preact/signals'
import { ApiError, call, get, signedOut } from './api'
import { forgetAll } from './data'
import type { WhoAmI } from './types'

export const who = signal<WhoAmI | undefined>(undefined)
export const failure = signal<ApiError | undefined>(undefined)

const CODE = /^#sign-in=([A-Za-z0-9_-]+)$/

/** Exchanges the code of a link for a session, if the address has one, and asks who this is. */
export async function begin(): Promise<void> {
  const code = CODE.exec(location.hash)?.[1]
  try {
    if (code !== undefined) {
      history.replaceState(null, '', location.pathname + location.search) // not for the history of the browser
      await call('POST', '/auth/browser', { code })
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
