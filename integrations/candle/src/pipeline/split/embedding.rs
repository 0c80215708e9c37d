//! A table of rows.

use super::{Layer, Queue, Sums, apply, check_weight};
use crate::error::{Error, Result as OurResult};
use crate::storage::{self, Elem, VisitMut};
use candle_core::{DType, Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};
use std::fmt;
use std::sync::Arc;

/// The rows of a table at integer places. Its weight part touches those rows only, where candle's makes a table of zeros
/// each time.
#[derive(Clone)]
pub struct Embedding {
    weight: Tensor,
    layer: Arc<dyn Layer>,
    queue: Queue,
}

impl Embedding {
    /// Takes `weight` (`rows x size`) from `vb`; a fresh one is standard normal.
    ///
    /// # Errors
    /// A name that `vb` lacks or holds with another shape.
    pub fn new(rows: usize, size: usize, queue: &Queue, vb: VarBuilder<'_>) -> Result<Self> {
        let weight = vb.get_with_hints((rows, size), "weight", Init::Randn { mean: 0.0, stdev: 1.0 })?;
        Self::from_tensor(weight, queue)
    }

    /// A table of this weight, which is a variable, or stays as it is.
    ///
    /// # Errors
    /// A weight that has not two dimensions, or that is computed from variables.
    pub fn from_tensor(weight: Tensor, queue: &Queue) -> Result<Self> {
        weight.dims2()?;
        check_weight("embedding", &weight)?;
        Ok(Embedding { weight, layer: Arc::new(Table), queue: queue.clone() })
    }

    /// The rows at `ids` (U8, U32 or I64, of any shape): `ids x size`.
    ///
    /// # Errors
    /// Another dtype; a place that the table has not.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        apply(&self.layer, &self.queue, ids, &self.weight)
    }
}

impl Module for Embedding {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Embedding::forward(self, x)
    }
}

impl fmt::Debug for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Embedding({:?})", self.weight.dims())
    }
}

struct Table;

impl Layer for Table {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn forward(&self, ids: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let mut dims = ids.dims().to_vec();
        dims.push(weight.dims2()?.1);
        weight.contiguous()?.index_select(&ids.flatten_all()?, 0)?.reshape(dims)
    }

    fn input(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Tensor> {
        bail!("embedding: places have no gradient")
    }

    fn weight(&self, ids: &Tensor, weight: &Tensor, gradient: &Tensor, sums: &Sums) -> OurResult<()> {
        let ids: Vec<i64> = ids.flatten_all()?.to_dtype(DType::I64)?.to_vec1()?;
        let rows: Vec<f64> = gradient.flatten_all()?.to_dtype(DType::F64)?.to_vec1()?;
        storage::write("embedding", &sums.slot(weight)?, Scatter { ids, rows })
    }
}

/// Adds rows at their places.
struct Scatter {
    ids: Vec<i64>,
    rows: Vec<f64>,
}

impl VisitMut for Scatter {
    type Out = ();

    fn visit<T: Elem>(self, sum: &mut [T]) -> OurResult<()> {
        let size = self.rows.len() / self.ids.len().max(1);
        for (&id, row) in self.ids.iter().zip(self.rows.chunks_exact(size.max(1))) {
            let at = id as usize * size;
            let absent = || Error::Shape { op: "embedding", problem: format!("there is no row {id}") };
            let place = sum.get_mut(at..at + size).ok_or_else(absent)?;
            place.iter_mut().zip(row).for_each(|(sum, &x)| *sum += T::from_f64(x));
        }
        Ok(())
    }
}
