package kerneltest

import (
	"os"
	"testing"
)

// Full reports whether tests run in full length: with SNUG_SLOW=1 in the environment. Without it "go test ./..." ends
// within three minutes on two cores, and tests every feature with fewer cases, repetitions and sizes.
func Full() bool { return os.Getenv("SNUG_SLOW") != "" }

// Slow skips a test that takes long, unless tests run in full length.
func Slow(t testing.TB) {
	t.Helper()
	if !Full() {
		t.Skip("takes long: SNUG_SLOW=1 go test runs it")
	}
}

// Taken says whether a test takes case i of a long list: every case in full length, or else one of every n.
// Tests whose lists have a second dimension add it to i, so that its values take turns.
func Taken(i, n int) bool { return Full() || i%n == 0 }
