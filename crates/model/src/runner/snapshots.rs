//! Snapshots: the recurrent state of a sequence at one of its positions, kept after it.

use ops::{Backend, GdnShape, GdnState, OpsError, PAGE_TOKENS};

use super::Runner;
use super::decoded::Begun;
use crate::{ModelConfig, ModelError, RunnerConfig};

/// Places for snapshots, on the device and in host memory.
pub(super) struct Snapshots<B: Backend> {
    /// One per GDN layer.
    pub(super) device: Vec<DeviceLayer<B>>,
    host: Vec<HostLayer<B>>,
    /// Tokens that a place covers; `None`: it holds nothing.
    lengths: Vec<Option<usize>>,
    /// Places that wait for a step to pass a state.
    begun: Vec<Option<Begun>>,
    host_lengths: Vec<Option<usize>>,
}

/// All places of one layer.
pub(super) struct DeviceLayer<B: Backend> {
    pub(super) shape: GdnShape,
    /// `[places, state_len]`, as in [`GdnState::state`].
    pub(super) state: B::Buf<f32>,
    /// `[places, 3, channels]`, as in [`GdnState::conv`].
    pub(super) conv: B::Buf<B::Act>,
}

/// The same in host memory.
struct HostLayer<B: Backend> {
    shape: GdnShape,
    state: B::HostBuf<f32>,
    conv: B::HostBuf<B::Act>,
}

/// Bytes of one snapshot of one layer.
pub(crate) fn snapshot_bytes<B: Backend>(shape: GdnShape) -> usize {
    size_of::<f32>() * shape.state_len() + size_of::<B::Act>() * conv_len(shape)
}

pub(super) fn conv_len(shape: GdnShape) -> usize {
    3 * shape.channels()
}

impl<B: Backend> Snapshots<B> {
    pub(super) fn new(
        backend: &B,
        sizes: &ModelConfig,
        config: &RunnerConfig,
    ) -> Result<Self, OpsError> {
        let (shape, layers) = (sizes.gdn, sizes.gdn_layers());
        let (places, host_places) = (config.snapshots, config.host_snapshots);
        let device = |_| {
            Ok(DeviceLayer {
                shape,
                state: backend.alloc(places * shape.state_len())?,
                conv: backend.alloc(places * conv_len(shape))?,
            })
        };
        let host = |_| {
            Ok(HostLayer {
                shape,
                state: backend.alloc_host(host_places * shape.state_len())?,
                conv: backend.alloc_host(host_places * conv_len(shape))?,
            })
        };
        Ok(Snapshots {
            device: (0..layers).map(device).collect::<Result<_, OpsError>>()?,
            host: (0..layers).map(host).collect::<Result<_, OpsError>>()?,
            lengths: vec![None; places],
            begun: vec![None; places],
            host_lengths: vec![None; host_places],
        })
    }

    /// Writes what a place holds into a slot.
    ///
    /// # Panics
    /// If the place does not hold a state of this length.
    pub(super) fn load(
        &self,
        backend: &B,
        place: usize,
        length: usize,
        states: &mut [GdnState<B>],
        slot: usize,
    ) -> Result<(), OpsError> {
        assert_eq!(
            self.lengths[place],
            Some(length),
            "snapshot {place} is resumed at the length that it covers"
        );
        for (layer, to) in self.device.iter().zip(states) {
            let (state, conv) = (layer.shape.state_len(), conv_len(layer.shape));
            backend.copy(
                &layer.state,
                place * state,
                &mut to.state,
                slot * state,
                state,
            )?;
            backend.copy(&layer.conv, place * conv, &mut to.conv, slot * conv, conv)?;
        }
        Ok(())
    }

    /// A place is to take a state that decoding passes.
    pub(super) fn begin(&mut self, place: usize, begun: Begun) {
        self.lengths[place] = None;
        self.begun[place] = Some(begun);
    }

    /// What a place waits for.
    pub(super) fn begun(&self, place: usize) -> Option<Begun> {
        self.begun[place]
    }

    /// A place holds the state of `length` tokens; `None`: it is being written.
    pub(super) fn set(&mut self, place: usize, length: Option<usize>) {
        self.begun[place] = None;
        self.lengths[place] = length;
    }

    fn save(
        &mut self,
        backend: &B,
        states: &[GdnState<B>],
        slot: usize,
        length: usize,
        place: usize,
    ) -> Result<(), OpsError> {
        self.set(place, None);
        for (layer, from) in self.device.iter_mut().zip(states) {
            let (state, conv) = (layer.shape.state_len(), conv_len(layer.shape));
            backend.copy(
                &from.state,
                slot * state,
                &mut layer.state,
                place * state,
                state,
            )?;
            backend.copy(&from.conv, slot * conv, &mut layer.conv, place * conv, conv)?;
        }
        self.set(place, Some(length));
        Ok(())
    }
}

impl<B: Backend> Runner<B> {
    /// Keeps the state of a slot in a snapshot's place; what was there is forgotten. The slot's
    /// length must be a multiple of 64 that its state has reached: always so behind a chunk that
    /// ends there, before the sequence's first step; behind a step or a replay only where it
    /// accepted no draft.
    ///
    /// # Panics
    /// If the state does not stand there, or there is no such place.
    pub fn save_snapshot(&mut self, slot: usize, snapshot: usize) -> Result<(), ModelError> {
        let progress = self.progress[slot];
        let length = progress.length;
        assert!(
            length > 0 && length.is_multiple_of(PAGE_TOKENS) && progress.pending == 0,
            "slot {slot} stands at {length} with {} pending rows; snapshots are taken at multiples \
             of {PAGE_TOKENS} without any",
            progress.pending
        );
        self.snapshots
            .save(&self.backend, &self.states, slot, length, snapshot)?;
        Ok(())
    }

    /// Copies a snapshot to a place in host memory; waits until it is there.
    ///
    /// # Panics
    /// If the place on the device holds nothing, or there is no such place.
    pub fn offload_snapshot(&mut self, snapshot: usize, host: usize) -> Result<(), ModelError> {
        let snapshots = &mut self.snapshots;
        let length = snapshots.lengths[snapshot];
        assert!(length.is_some(), "snapshot {snapshot} holds nothing");
        snapshots.host_lengths[host] = None;
        for (from, to) in snapshots.device.iter().zip(&mut snapshots.host) {
            let (state, conv) = (from.shape.state_len(), conv_len(from.shape));
            let backend = &self.backend;
            backend.copy_to_host(
                &from.state,
                snapshot * state,
                &mut to.state,
                host * state,
                state,
            )?;
            backend.copy_to_host(&from.conv, snapshot * conv, &mut to.conv, host * conv, conv)?;
        }
        snapshots.host_lengths[host] = length;
        Ok(())
    }

    /// Copies a snapshot back from host memory, where it stays.
    ///
    /// # Panics
    /// If the place in host memory holds nothing, or there is no such place.
    pub fn fetch_snapshot(&mut self, host: usize, snapshot: usize) -> Result<(), ModelError> {
        let snapshots = &mut self.snapshots;
        let length = snapshots.host_lengths[host];
        assert!(
            length.is_some(),
            "place {host} in host memory holds nothing"
        );
        snapshots.set(snapshot, None);
        for (from, to) in snapshots.host.iter().zip(&mut snapshots.device) {
            let (state, conv) = (from.shape.state_len(), conv_len(from.shape));
            let backend = &self.backend;
            backend.copy_from_host(
                &from.state,
                host * state,
                &mut to.state,
                snapshot * state,
                state,
            )?;
            backend.copy_from_host(&from.conv, host * conv, &mut to.conv, snapshot * conv, conv)?;
        }
        snapshots.set(snapshot, length);
        Ok(())
    }
}
