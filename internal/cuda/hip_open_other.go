//go:build hip && !(linux && (amd64 || arm64))

package cuda

import (
	"fmt"
	"runtime"

	"github.com/snug-ml/snug/internal/driver"
)

func init() { driver.Register("hip", newBackend(&amd, loadHIP, func(func(*ltAPI) bool) {})) }

func loadHIP() (*api, error) {
	return nil, fmt.Errorf("HIP on %s/%s: snug opens it on linux, amd64 and arm64: %w", runtime.GOOS, runtime.GOARCH, driver.ErrNotBuilt)
}
