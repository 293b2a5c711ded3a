// Package gonum trains gonum's float64 matrices with the optimizers of package quant8. AdamW's state then takes about 2
// bytes an element, not the 16 of float64. The package also casts and multiplies matrices in smaller types.
//
//	opt, err := gonum.New(quant8.AdamW{}, quant8.Options{}, gonum.Param{Name: "w", Value: w}, gonum.Param{Name: "b", Value: b})
//	for range steps {
//		gradients(dw, db, w, b)   // yours: *mat.Dense and *mat.VecDense
//		err = opt.Step(1e-3, dw, db)
//	}
//
// [Method] makes such an optimizer a method of gonum's optimize.Minimize, beside its GradientDescent, CG and LBFGS.
//
// # Precision
//
// The optimizer computes in float32, and its update is added to the element of float64:
//
//	p  = float32(w)
//	p' = the step of the rule from p, with float32(g)
//	w += float64(p') - float64(p)
//
// So w keeps the bits that float32 cannot hold, and a step whose update is 0 leaves w as it is. An update has the
// precision that it has for a float32 weight: one below half the distance from p to the next float32, about 6e-8·|p|, is
// lost.
//
// # Operands
//
// A matrix is a *mat.Dense, a *mat.VecDense, or another type that has RawMatrix or RawVector with the same layout. It may
// be a part of a larger matrix, whose other elements stay as they are.
package gonum
