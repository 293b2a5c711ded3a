//go:build (cuda || hip) && !((linux || windows) && (amd64 || arm64))

package cuda

import (
	"fmt"
	"runtime"

	"github.com/snug-ml/snug/internal/driver"
)

func loadDriver() (*api, error) {
	return nil, fmt.Errorf("CUDA on %s/%s: snug opens it on linux and windows, amd64 and arm64: %w",
		runtime.GOOS, runtime.GOARCH, driver.ErrNotBuilt)
}

func loadLt() *ltAPI { return nil }
