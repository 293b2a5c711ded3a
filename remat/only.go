package remat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
)

// Only returns the plan that computes the saved sets of the named stages again and keeps the saved sets of all others. It
// keeps the output of every stage, so that each named stage runs forward once more. This is a checkpoint around each named stage. The
// last stage, whose backward step follows its forward step, is saved in any case.
//
// A name selects the stages whose [Cost].Name it is or contains it between dots: "layers.3.mlp" one stage, "layers.3" all
// stages of a layer, "mlp" the MLPs of all layers. These are the names that package meter's Monitor shows for the
// models of package transformer.
//
// The error wraps [snug.ErrConfig]: c is not valid or has more than 2^20 stages, or no stage has the name. Then the
// error says which name is the nearest.
func Only(c Costs, names ...string) (Plan, error) {
	return selected(c, "only", names, keepOutput, keepSaved)
}

// AllBut returns the plan that keeps the saved sets of the named stages and computes those of all others again. Otherwise
// it is [Only].
func AllBut(c Costs, names ...string) (Plan, error) {
	return selected(c, "all-but", names, keepSaved, keepOutput)
}

// selected returns the plan of one decision for the named stages and of another one for the rest.
func selected(c Costs, title string, names []string, named, rest decision) (Plan, error) {
	if err := c.Validate(); err != nil {
		return Plan{}, err
	}
	n := len(c.Stages)
	if n > maxStages {
		return Plan{}, fmt.Errorf("remat: plan %s for %d stages, want %d at most: %w", title, n, maxStages, snug.ErrConfig)
	}
	decisions := slices.Repeat([]decision{rest}, n)
	for _, name := range names {
		found := false
		for i := range c.Stages {
			if strings.Contains("."+c.Stages[i].Name+".", "."+name+".") && name != "" {
				decisions[i], found = named, true
			}
		}
		if !found {
			return Plan{}, fmt.Errorf("remat: plan %s: no stage is called %.80q%s: %w", title, name, nearest(c, name), snug.ErrConfig)
		}
	}
	name := fmt.Sprintf("%s(%s)", title, strings.Join(names, ", "))
	return Plan{Name: name, Stages: n, Ops: appendDecided(nil, decisions, 0)}, nil
}

// nearest says which name of a stage, or part of one between dots, has the fewest changed letters from the given one.
func nearest(c Costs, name string) string {
	best, fewest := "", 0
	seen := map[string]bool{"": true}
	for _, s := range c.Stages {
		parts := strings.Split(s.Name, ".")
		for lo := range parts {
			for hi := lo + 1; hi <= len(parts); hi++ {
				known := strings.Join(parts[lo:hi], ".")
				if seen[known] {
					continue
				}
				seen[known] = true
				if d := distance(name, known); best == "" || d < fewest {
					best, fewest = known, d
				}
			}
		}
	}
	if best == "" {
		return "; the stages have no names"
	}
	return fmt.Sprintf("; the nearest name is %.80q", best)
}

// distance returns the number of bytes to insert, remove or replace to turn a into b (Levenshtein 1966).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a prefix of a from the prefixes of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
