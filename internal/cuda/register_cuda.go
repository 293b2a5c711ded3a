//go:build cuda

package cuda

import "github.com/snug-ml/snug/internal/driver"

func init() { driver.Register("cuda", newBackend(&nvidia, loadDriver, loadLt)) }
