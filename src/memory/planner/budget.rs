//! What devices may be given.

use super::Need;
use crate::backend::sched::HOST;

/// Left free on each device unless the user says otherwise: other programs, and what the
/// planner does not know.
pub const MARGIN_BYTES: usize = 512 << 20;

/// What is left where no limit is known.
const PLENTY: i128 = 1 << 64;

/// What a device may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Free bytes; `None`: no limit is known.
    pub free: Option<usize>,
    /// What the driver takes when anything goes there.
    pub overhead: usize,
    /// Left free.
    pub margin: usize,
}

/// What all devices may be given.
#[derive(Debug, Clone)]
pub struct Budget {
    /// By device number; the host is the first.
    pub rooms: Vec<Room>,
    /// Whether weights in the file's map count on the host: without room for them they
    /// are read from the disk again and again.
    pub counts_mapped: bool,
}

impl Budget {
    /// The host with `host` free bytes, and a device with its free bytes and overhead if
    /// there is one.
    pub fn new(
        host: Option<usize>,
        device: Option<(Option<usize>, usize)>,
        margin: usize,
    ) -> Budget {
        let room = |(free, overhead)| Room {
            free,
            overhead,
            margin,
        };
        let devices = std::iter::once((host, 0)).chain(device);
        Budget {
            rooms: devices.map(room).collect(),
            counts_mapped: true,
        }
    }

    /// The same for a session that has to start: no margin on the host, whose weights
    /// may stay on the disk.
    pub fn lenient(&self) -> Budget {
        let mut budget = self.clone();
        budget.rooms[HOST].margin = 0;
        budget.counts_mapped = false;
        budget
    }

    /// The same without margins: for what the user has chosen.
    pub fn without_margins(&self) -> Budget {
        let mut budget = self.clone();
        budget.rooms.iter_mut().for_each(|room| room.margin = 0);
        budget
    }

    /// Bytes that this leaves on a device, by number; below 0 where it has no room.
    pub fn left(&self, number: usize, need: &Need) -> i128 {
        let room = self.rooms[number];
        let mut total = need.total();
        if number == HOST && !self.counts_mapped {
            total = total.saturating_sub(need.weights);
        }
        let wanted = match total {
            // Nothing goes there.
            0 => 0,
            total => total as i128 + room.margin as i128,
        };
        room.free.map_or(PLENTY, |free| free as i128 - wanted)
    }

    /// Whether a device, by number, has room for this.
    pub fn fits(&self, number: usize, need: &Need) -> bool {
        self.left(number, need) >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::placement::OFFLOAD;

    #[test]
    fn room_is_for_what_goes_there_and_its_margin() {
        let budget = Budget::new(Some(1000), Some((Some(500), 0)), 100);
        let need = |weights, kv| Need {
            weights,
            kv,
            ..Need::default()
        };
        assert!(budget.fits(HOST, &need(800, 100)) && !budget.fits(HOST, &need(800, 101)));
        assert!(budget.fits(OFFLOAD, &need(400, 0)) && !budget.fits(OFFLOAD, &need(401, 0)));
        let tight = Budget::new(Some(1000), Some((Some(50), 0)), 100);
        assert!(tight.fits(OFFLOAD, &need(0, 0)) && !tight.fits(OFFLOAD, &need(1, 0)));
        let lenient = budget.lenient();
        assert!(lenient.fits(HOST, &need(1 << 40, 1000)));
        assert!(!lenient.fits(HOST, &need(0, 1001)) && !lenient.fits(OFFLOAD, &need(401, 0)));
        assert!(budget.without_margins().fits(OFFLOAD, &need(500, 0)));
        let unknown = Budget::new(None, Some((None, 7)), 100);
        assert!(unknown.fits(HOST, &need(usize::MAX, 1)));
        assert!(unknown.fits(OFFLOAD, &need(usize::MAX, 1)));
    }
}
