import { defineConfig } from 'vite'

// The gateway serves what is built; there is no other server, so that what is tested is what runs.
export default defineConfig({
  build: {
    outDir: '../src/traceplane/gateway/ui',
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0, // a strict Content-Security-Policy: nothing inline
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
})
