"""Sign-in with the identity providers of an organization, by OpenID Connect.

    browser         what a browser brings along: cookies, where it may go next, and whether a call comes from our pages
    conversation    what the gateway says to a provider: codes and device codes become tokens
    issuers         what providers publish: their addresses and keys, fetched, kept and fetched again
    jwts            whether a JWT was signed by a provider for us, and is valid now
    providers       the providers that an organization trusts, and which roles their claims mean

Three ways in, one check. A machine sends a JWT of a provider with each call. A person signs in with a browser
(authorization code with PKCE), which then has a session, or with the command line (device code), which then has a
token. Whatever a provider signs is checked by `jwts.verify`; the claims and `providers` decide who it is here.

Nothing that a provider or a browser sent is trusted before that: the issuer of a JWT only chooses among providers that
admins have named, its key is one that the issuer publishes, and its algorithm must be of that key. A sign-in that a
browser begins can be completed by that browser only: state, nonce and PKCE verifier are derived from a random value in
its cookie, and nothing about it is stored. All but `issuers` and `conversation` is pure.
"""
