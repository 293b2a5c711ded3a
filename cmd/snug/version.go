package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/snug-ml/snug/internal/driver"
)

func versionCommand() *command {
	return &command{
		name: "version", summary: "version, revision, Go, system and backends",
		help: `Prints the version of the module, the revision and its time if the program was built in a
repository, the Go that built it, the system, the instructions of the CPU that kernels use
(SNUG_CPU lowers them), and the backends that are built in.
`,
		flags: func() flagTable { return flagTable{jsonFlag(new(bool))} },
		run:   runVersion,
	}
}

// versionReport describes the build of a program.
type versionReport struct {
	Module       string   `json:"module"`
	Version      string   `json:"version"`
	Revision     string   `json:"revision,omitempty"`
	Time         string   `json:"time,omitempty"`
	Modified     bool     `json:"modified,omitempty"` // since the revision
	Go           string   `json:"go"`
	System       string   `json:"system"`
	Instructions string   `json:"cpu_instructions"`
	Backends     []string `json:"backends"`
}

func runVersion(c *call) error {
	asJSON := false
	if _, err := c.parse(flagTable{jsonFlag(&asJSON)}, 0, 0); err != nil {
		return err
	}
	info, _ := debug.ReadBuildInfo()
	tier, err := bestTier()
	if err != nil {
		return usageError{err} // error of SNUG_CPU
	}
	r := versionOf(info)
	r.Instructions, r.Backends = tier.String(), append([]string{"cpu"}, driver.Kinds()...)
	if asJSON {
		return writeJSON(c.stdout, r)
	}
	return r.write(c)
}

// versionOf returns what the build information says about snug, whether it is the main module or a dependency. info may
// be nil.
func versionOf(info *debug.BuildInfo) versionReport {
	r := versionReport{Module: modulePath, Version: "(unknown)", Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		return r
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == modulePath {
			r.Version = m.Version
		}
	}
	if info.Main.Path != modulePath {
		return r // the revision is another module's
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			r.Revision = s.Value
		case "vcs.time":
			r.Time = s.Value
		case "vcs.modified":
			r.Modified = s.Value == "true"
		}
	}
	return r
}

const modulePath = "github.com/snug-ml/snug"

func (r versionReport) write(c *call) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", r.Module, r.Version)
	if r.Revision != "" {
		modified := ""
		if r.Modified {
			modified = ", modified since"
		}
		fmt.Fprintf(&b, "revision %s of %s%s\n", r.Revision, r.Time, modified)
	}
	fmt.Fprintf(&b, "%s on %s, instructions %s\nbackends: %s\n", r.Go, r.System, r.Instructions, strings.Join(r.Backends, ", "))
	_, err := fmt.Fprint(c.stdout, b.String())
	return err
}
