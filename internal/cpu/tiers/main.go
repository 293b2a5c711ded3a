// Tiers prints the names of the CPU tiers that this machine has, in order, as
// SNUG_CPU takes them.
package main

import (
	"fmt"

	"github.com/snug-ml/snug/internal/cpu"
)

func main() {
	for t := cpu.Go; t.Known(); t++ {
		if t.Has() {
			fmt.Println(t)
		}
	}
}
