//go:build !((cuda || hip) && linux && (amd64 || arm64))

package nccl

import (
	"fmt"
	"runtime"

	"github.com/snug-ml/snug"
)

// built returns an error: this build has no library.
func built() error {
	if runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64") {
		return fmt.Errorf("this program was built without the tag cuda or hip: build it with -tags cuda, for AMD with -tags hip: %w", snug.ErrNotBuilt)
	}
	return fmt.Errorf("NCCL needs the tag cuda or hip, and linux on amd64 or arm64, not %s/%s: %w", runtime.GOOS, runtime.GOARCH, snug.ErrNotBuilt)
}

func openLibrary(_, _ string) (*library, error) { return nil, built() }
