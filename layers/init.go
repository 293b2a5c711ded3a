package layers

import "math"

// deviation returns the standard deviation of a matrix's initial values, for rows of in elements.
func deviation(in int) float64 { return 1 / math.Sqrt(float64(in)) }

// newParam returns a parameter that trains, whose first values are normally distributed with the given deviation.
func newParam(name string, deviation float64, shape ...int) *Param {
	return &Param{Name: name, Shape: shape, Trains: true, deviation: deviation}
}

// ones returns a parameter that trains and begins as 1.
func ones(name string, cols int) *Param {
	p := newParam(name, 0, cols)
	p.constant = 1
	return p
}

// newTable returns a table that trains.
func newTable(name string, rows, width int) *Param {
	p := newParam(name, deviation(width), rows, width)
	p.table = true
	return p
}
