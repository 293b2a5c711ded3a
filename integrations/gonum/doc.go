// Package gonum trains matrices of gonum, of float64, with the optimizers of package quant8, whose state takes about 2
// bytes an element in place of the 16 of AdamW in float64, and casts and multiplies them in smaller types.
//
//	opt, err := gonum.New(quant8.AdamW{}, quant8.Options{}, gonum.Param{Name: "w", Value: w}, gonum.Param{Name: "b", Value: b})
//	for range steps {
//		gradients(dw, db, w, b)   // yours: *mat.Dense and *mat.VecDense
//		err = opt.Step(1e-3, dw, db)
//	}
//
// [Method] is the same for gonum's optimize.Minimize: a method beside its GradientDescent, CG and LBFGS.
//
// # Precision
//
// The optimizer computes in float32, and its update is added to the element of float64:
//
//	p  = float32(w)
//	p' = the step of the rule from p, with float32(g)
//	w += float64(p') - float64(p)
//
// So w keeps what float32 cannot hold, and a step whose update is 0 leaves w as it is. An update has the precision that
// it has for a weight of float32: one below half the distance of p to its neighbour, about 6e-8·|p|, is lost.
//
// # Operands
//
// A matrix is a *mat.Dense, a *mat.VecDense, or another type with RawMatrix or RawVector of this layout, also one cut from a
// larger matrix, whose other elements stay as they are.
package gonum
