//go:build unix

package browsertest

import _ "embed"

//go:embed page.js
var script string
