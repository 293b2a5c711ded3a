package gonum_test

import (
	"fmt"
	"log"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/integrations/gonum"
	"github.com/snug-ml/snug/quant8"
	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize"
)

// Fits y = x·w by least squares.
func Example() {
	x := mat.NewDense(4, 2, []float64{1, 0, 0, 1, 1, 1, 2, 1})
	y := mat.NewVecDense(4, []float64{2, -1, 1, 3})
	w := mat.NewVecDense(2, nil)

	opt, err := gonum.New(quant8.Adam{}, quant8.Options{}, gonum.Param{Name: "w", Value: w})
	if err != nil {
		log.Fatal(err)
	}
	var residual, grad mat.VecDense
	for step := range 400 {
		residual.MulVec(x, w)
		residual.SubVec(&residual, y)
		grad.MulVec(x.T(), &residual)
		if err := opt.Step(0.1/(1+float64(step)/40), &grad); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("%.2f\n", w.RawVector().Data)
	// Output: [2.00 -1.00]
}

// Minimizes a function by an optimizer of package quant8 in place of LBFGS.
func ExampleMethod() {
	problem := optimize.Problem{
		Func: func(x []float64) float64 { return (x[0] - 3) * (x[0] - 3) },
		Grad: func(grad, x []float64) { grad[0] = 2 * (x[0] - 3) },
	}
	method := &gonum.Method{Rule: quant8.Adam{}, Rate: func(step int) float64 { return 0.5 / float64(1+step/20) }}
	result, err := optimize.Minimize(problem, []float64{0}, &optimize.Settings{MajorIterations: 300}, method)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.2f\n", result.X)
	// Output: [3.00]
}

// Multiplies in bfloat16, with a transpose that copies nothing.
func ExampleMul() {
	a := mat.NewDense(2, 2, []float64{1, 2, 3, 4})
	var c mat.Dense
	if err := gonum.Mul(&c, a, a.T(), snug.BF16); err != nil {
		log.Fatal(err)
	}
	fmt.Println(mat.Formatted(&c))
	// Output:
	// ⎡ 5  11⎤
	// ⎣11  25⎦
}
