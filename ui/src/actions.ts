// Calls that change something, and what people are told of it.
import { ApiError } from './api'
import { sentence, toast } from './parts'

/** The answer, or undefined if it failed, which is said. */
export async function attempt<Answer>(work: () => Promise<Answer>): Promise<Answer | undefined> {
  try {
    return await work()
  } catch (error) {
    toast(error instanceof ApiError ? inWords(error) : String(error), true)
    return undefined
  }
}

export const inWords = (error: ApiError): string => [error.message, error.nextStep ?? ''].filter(Boolean).map(sentence).join(' ').replaceAll('`', '')
