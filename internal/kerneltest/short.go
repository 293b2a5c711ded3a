package kerneltest

import "testing"

// Taken says whether a test takes case i of a long list: every case, or with -short one of every n.
// Tests whose lists have a second dimension add it to i, so that its values take turns.
func Taken(i, n int) bool { return !testing.Short() || i%n == 0 }
