//go:build !(darwin || linux)

package offload

import "errors"

const filesCanBeLimited = false

func limitFiles(uint64) error { return errors.ErrUnsupported }
