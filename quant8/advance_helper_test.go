package quant8

// testRates are learning rates of tests for optimizers by their names; others have 1e-2.
var testRates = map[string]float32{"AdamW": 1e-3, "AdafactorMomentum": 0.05}

// testRate is that of advance.
func testRate(a *Optimizer) float32 {
	if rate, known := testRates[a.o.Title]; known {
		return rate
	}
	return 1e-2
}

// advance begins a step at the rate of tests.
func advance(a *Optimizer) { a.Advance(testRate(a)) }
