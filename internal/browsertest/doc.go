// Package browsertest opens pages in a headless Chromium and looks at what it draws. It speaks the DevTools protocol over
// a pipe, and needs nothing but the browser, on a system with the pipes of Unix.
package browsertest
