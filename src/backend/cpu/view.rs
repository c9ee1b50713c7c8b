//! A tensor's place in shared memory, as the ops see it.
//!
//! All of this file's `unsafe` rests on the contract of [`super::buffer`].

use super::pool::Worker;
use crate::graph::{Count, Live, Tensor};
use crate::quant::DType;

/// Live counts of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub tokens: usize,
    pub outputs: usize,
    pub cells: usize,
    pub cells_swa: usize,
}

impl Counts {
    /// The count a live dimension is cut to.
    pub fn get(&self, count: Count) -> usize {
        match count {
            Count::Tokens => self.tokens,
            Count::Outputs => self.outputs,
            Count::Cells { swa: false } => self.cells,
            Count::Cells { swa: true } => self.cells_swa,
        }
    }
}

/// A tensor's place in memory, shape and strides.
#[derive(Clone, Copy)]
pub struct View {
    pub ptr: *mut u8,
    pub dtype: DType,
    pub ne: [usize; 4],
    pub nb: [usize; 4],
    pub live: Option<Live>,
}

// SAFETY: access follows the contract in `buffer.rs`.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

/// Position of a row: indices of dimensions 1, 2 and 3.
pub type RowAt = [usize; 3];

impl View {
    /// A tensor's shape without a place: enough to ask for sizes.
    pub fn unplaced(tensor: &Tensor) -> View {
        View {
            ptr: std::ptr::null_mut(),
            dtype: tensor.dtype,
            ne: tensor.ne,
            nb: tensor.nb,
            live: tensor.live,
        }
    }

    /// This view cut to the live count of a run.
    pub fn cut(&self, counts: &Counts) -> View {
        let mut v = *self;
        if let Some(live) = self.live {
            v.ne[live.dim] = counts.get(live.count).min(v.ne[live.dim]);
        }
        v
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// Position of row number `r`.
    pub fn row_at(&self, r: usize) -> RowAt {
        let n = self.ne;
        [r % n[1], r / n[1] % n[2], r / (n[1] * n[2])]
    }

    fn row_ptr(&self, at: RowAt) -> *mut u8 {
        assert!(
            (0..3).all(|i| at[i] < self.ne[i + 1]),
            "row inside the tensor"
        );
        let offset: usize = (0..3).map(|i| at[i] * self.nb[i + 1]).sum();
        // SAFETY: the indices are inside the shape, whose bytes the view's
        // creator has checked against the owning buffer.
        unsafe { self.ptr.add(offset) }
    }

    /// A row of f32 values.
    pub fn row(&self, at: RowAt) -> &[f32] {
        assert!(
            self.dtype == DType::F32 && self.nb[0] == 4,
            "a row of packed f32"
        );
        // SAFETY: see `buffer.rs`; rows are 4-byte aligned.
        unsafe { std::slice::from_raw_parts(self.row_ptr(at).cast(), self.ne[0]) }
    }

    /// Neighbouring rows of a matrix of f32 without gaps.
    pub fn rows(&self, rows: std::ops::Range<usize>) -> &[f32] {
        let (first, len) = self.span(&rows, [0; 2]);
        // SAFETY: the rows are inside the tensor; see `buffer.rs`.
        unsafe { std::slice::from_raw_parts(first, len) }
    }

    /// Neighbouring rows without gaps, to be changed, at indices `at` of dimensions 2
    /// and 3. As [`View::own_columns`].
    #[allow(clippy::mut_from_ref)]
    pub fn own_rows(&self, rows: std::ops::Range<usize>, at: [usize; 2]) -> &mut [f32] {
        let (first, len) = self.span(&rows, at);
        // SAFETY: the rows are inside the tensor, and the contract in `buffer.rs`.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    fn span(&self, rows: &std::ops::Range<usize>, at: [usize; 2]) -> (*mut f32, usize) {
        let inside = rows.start < rows.end && rows.end <= self.ne[1];
        assert!(inside && self.dtype == DType::F32 && self.nb[1] == 4 * self.ne[0]);
        let first = self.row_ptr([rows.start, at[0], at[1]]);
        (first.cast(), rows.len() * self.ne[0])
    }

    /// Position of the row that `at` reads when this view repeats (has 1).
    pub fn repeat(&self, at: RowAt) -> RowAt {
        std::array::from_fn(|i| if self.ne[i + 1] == 1 { 0 } else { at[i] })
    }

    /// A row of i32 values.
    pub fn ints(&self, at: RowAt) -> &[i32] {
        assert!(self.dtype == DType::I32, "a row of i32");
        // SAFETY: see `buffer.rs`; rows are 4-byte aligned.
        unsafe { std::slice::from_raw_parts(self.row_ptr(at).cast(), self.ne[0]) }
    }

    /// A row's bytes, any type.
    pub fn row_bytes(&self, at: RowAt) -> &[u8] {
        let len = self.ne[0] / self.dtype.block_len() * self.dtype.block_bytes();
        // SAFETY: see `buffer.rs`.
        unsafe { std::slice::from_raw_parts(self.row_ptr(at), len) }
    }

    /// All bytes of a contiguous tensor.
    pub fn all_bytes(&self) -> &[u8] {
        let len = self.nb[3] * self.ne[3];
        // SAFETY: see `buffer.rs`; contiguous tensors span nb[3] * ne[3] bytes.
        unsafe { std::slice::from_raw_parts(self.ptr, len) }
    }

    /// All values of a contiguous tensor of f32 (of i32: their bits), to be
    /// read between runs.
    pub fn all_floats(&self) -> &[f32] {
        assert!(self.dtype.block_bytes() == 4, "values of four bytes");
        // SAFETY: see `buffer.rs`; contiguous tensors have no gaps.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.n_rows() * self.ne[0]) }
    }

    /// The rows of this result that belong to one thread, as bytes.
    pub fn my_row_bytes<'a>(
        &'a self,
        worker: &Worker<'_>,
    ) -> impl Iterator<Item = (RowAt, &'a mut [u8])> {
        worker.share(self.n_rows(), 1).map(|r| {
            let at = self.row_at(r);
            let len = self.row_bytes(at).len();
            // SAFETY: shares of different threads are disjoint.
            let row = unsafe { std::slice::from_raw_parts_mut(self.row_ptr(at), len) };
            (at, row)
        })
    }

    /// Rows `slots[t]` for this thread's part of the list, as bytes; slots
    /// outside the tensor are passed over. The slots of a list are distinct.
    pub fn my_slots<'a>(
        &'a self,
        worker: &Worker<'_>,
        slots: &'a [i32],
    ) -> impl Iterator<Item = (usize, &'a mut [u8])> {
        worker.share(slots.len(), 1).filter_map(move |t| {
            let slot = usize::try_from(slots[t]).ok().filter(|&s| s < self.ne[1])?;
            let at = [slot, 0, 0];
            let len = self.row_bytes(at).len();
            // SAFETY: distinct slots, each in one thread's part of the list.
            let row = unsafe { std::slice::from_raw_parts_mut(self.row_ptr(at), len) };
            Some((t, row))
        })
    }

    /// Columns of a row, to be changed. Only the thread that owns these values may
    /// call it, and holds one such slice of them at a time.
    #[allow(clippy::mut_from_ref)]
    pub fn own_columns(&self, at: RowAt, columns: std::ops::Range<usize>) -> &mut [f32] {
        let fits = columns.start <= columns.end && columns.end <= self.ne[0];
        assert!(
            fits && self.dtype == DType::F32 && self.nb[0] == 4,
            "columns of f32"
        );
        // SAFETY: inside the row, and the contract in `buffer.rs`.
        unsafe {
            let first = self.row_ptr(at).cast::<f32>().add(columns.start);
            std::slice::from_raw_parts_mut(first, columns.len())
        }
    }

    /// Writes `values` to a row from column `start` on. Only the thread that
    /// owns these values may call it.
    pub fn put(&self, at: RowAt, start: usize, values: impl ExactSizeIterator<Item = f32>) {
        let out = self.own_columns(at, start..start + values.len());
        out.iter_mut().zip(values).for_each(|(y, x)| *y = x);
    }

    /// Writes value `i` of a row of i32. Only the thread that owns it may call it.
    pub fn put_int(&self, at: RowAt, i: usize, value: i32) {
        assert!(
            self.dtype == DType::I32 && i < self.ne[0],
            "inside a row of i32"
        );
        // SAFETY: inside the row, and the contract in `buffer.rs`.
        unsafe { self.row_ptr(at).cast::<i32>().add(i).write(value) };
    }

    /// The f32 rows of this result that belong to one thread.
    pub fn my_rows<'a>(
        &'a self,
        worker: &Worker<'_>,
    ) -> impl Iterator<Item = (RowAt, &'a mut [f32])> {
        // Shares of different threads are disjoint.
        worker.share(self.n_rows(), 1).map(|r| {
            let at = self.row_at(r);
            (at, self.own_columns(at, 0..self.ne[0]))
        })
    }

    /// The i32 rows of this result that belong to one thread.
    pub fn my_int_rows<'a>(
        &'a self,
        worker: &Worker<'_>,
    ) -> impl Iterator<Item = (RowAt, &'a mut [i32])> {
        assert!(self.dtype == DType::I32, "a row of i32");
        worker.share(self.n_rows(), 1).map(|r| {
            let at = self.row_at(r);
            // SAFETY: shares of different threads are disjoint.
            let row =
                unsafe { std::slice::from_raw_parts_mut(self.row_ptr(at).cast(), self.ne[0]) };
            (at, row)
        })
    }

    /// A thread's part of this result as pieces of rows: when there are fewer
    /// rows than threads, rows are cut. Gives row, first column, values.
    pub fn my_pieces<'a>(
        &'a self,
        worker: &Worker<'_>,
    ) -> impl Iterator<Item = (RowAt, usize, &'a mut [f32])> {
        let by_columns = self.n_rows() < worker.nth;
        let rows = if by_columns {
            0..self.n_rows()
        } else {
            worker.share(self.n_rows(), 1)
        };
        // 16 values are a cache line: threads do not share one.
        let columns = if by_columns {
            worker.share(self.ne[0], 16)
        } else {
            0..self.ne[0]
        };
        rows.map(move |r| {
            let at = self.row_at(r);
            // Rows or columns of different threads are disjoint.
            let piece = self.own_columns(at, columns.clone());
            (at, columns.start, piece)
        })
    }
}
