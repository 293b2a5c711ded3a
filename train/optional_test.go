package train_test

import (
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// What the packages have that a model, a window, a storage and a Stepper may be besides.
var (
	_ train.Matrices = (*transformer.Model)(nil)
	_ train.Blocks   = (*transformer.Model)(nil)
	_ train.Paged    = (*transformer.Model)(nil)

	_ train.Buffered = (*layers.Model)(nil)

	_ train.Completer = (*accum.Window)(nil)
	_ train.Completer = (*accum.Sharded)(nil)

	_ train.Prefetcher = (*offload.Store)(nil)
	_ train.Grouper    = (*offload.Store)(nil)
	_ meter.Deleter    = (*offload.Store)(nil)
	_ train.Prefetcher = (*meter.Pages)(nil)
	_ train.Grouper    = (*meter.Pages)(nil)
	_ train.Locator    = (*meter.Pages)(nil)

	_ offload.StepCounter = (*quant8.Optimizer)(nil)
	_ offload.Locator     = (*quant8.Optimizer)(nil)
)
