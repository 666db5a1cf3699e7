//! The nodes of a cluster, and their slots.

use std::{sync::Arc, time::Duration};

use fred::types::config::Server;
use tokio::time::Instant;

use crate::{
    lane::Lane,
    node::Node,
    slots::{Layout, SLOTS},
};

/// A node that nobody names any more is kept for so long: while a slot moves, nodes do not all see the same.
const FAREWELL: Duration = Duration::from_secs(10);

/// The nodes and who serves which slot. `N` is a node.
#[derive(Debug)]
pub(crate) struct Map<N> {
    /// Number `i + 1` stands at `i`. A number is taken over by another node only after its own has left.
    members: Vec<Option<Member<N>>>,
    /// The numbers of the nodes; 0 for none.
    slots: Box<[usize]>,
    replicas: Vec<Server>,
}

#[derive(Debug)]
struct Member<N> {
    server: Server,
    node: Arc<N>,
    /// When somebody named it last.
    named: Instant,
}

impl<N> Map<N> {
    /// The number of the node that serves `slot`, from 1.
    pub(crate) fn number(&self, slot: u16) -> Option<usize> {
        let number = self.slots.get(usize::from(slot)).copied();
        number.filter(|&number| number > 0)
    }

    pub(crate) fn node(&self, slot: u16) -> Option<Arc<N>> {
        let member = self.members.get(self.number(slot)? - 1)?.as_ref()?;
        Some(member.node.clone())
    }

    /// The nodes there are.
    pub(crate) fn nodes(&self) -> Vec<Arc<N>> {
        let members = self.members.iter().flatten();
        members.map(|member| member.node.clone()).collect()
    }

    /// All addresses at which there is or was a node, `seeds` included.
    pub(crate) fn heard_of(&self, seeds: &[Server]) -> Vec<Server> {
        let members = self.members.iter().flatten().map(|member| &member.server);
        let mut all = seeds.to_vec();
        for server in members.chain(&self.replicas) {
            if !all.contains(server) {
                all.push(server.clone());
            }
        }
        all
    }

    /// Takes over a layout, and gives back the nodes that nobody has named for a while.
    pub(crate) fn apply(
        &mut self,
        layout: Layout,
        now: Instant,
        start: impl Fn(&Server) -> Arc<N>,
    ) -> Vec<Arc<N>> {
        let mut slots = vec![0; SLOTS];
        for (first, last, server) in layout.ranges {
            let number = self.number_of(server, now, &start);
            slots[first..=last].fill(number);
        }
        self.slots = slots.into();
        self.replicas = layout.replicas;
        let mut gone = Vec::new();
        for member in &mut self.members {
            let left = member.take_if(|member| now - member.named > FAREWELL);
            gone.extend(left.map(|member| member.node));
        }
        gone
    }

    /// Hears that `slot` is served at `server`.
    pub(crate) fn moved(
        &mut self,
        slot: u16,
        server: Server,
        now: Instant,
        start: impl Fn(&Server) -> Arc<N>,
    ) -> Arc<N> {
        let number = self.number_of(server.clone(), now, &start);
        if let Some(entry) = self.slots.get_mut(usize::from(slot)) {
            *entry = number;
        }
        self.known(server, now, start)
    }

    /// The node at `server`, also a new one.
    pub(crate) fn known(
        &mut self,
        server: Server,
        now: Instant,
        start: impl Fn(&Server) -> Arc<N>,
    ) -> Arc<N> {
        let number = self.number_of(server, now, &start);
        let member = self.members[number - 1].as_ref();
        member.expect("named just now").node.clone()
    }

    fn number_of(
        &mut self,
        server: Server,
        now: Instant,
        start: &impl Fn(&Server) -> Arc<N>,
    ) -> usize {
        let is_it = |member: &Option<Member<N>>| {
            member
                .as_ref()
                .is_some_and(|member| member.server == server)
        };
        if let Some(index) = self.members.iter().position(is_it) {
            if let Some(member) = &mut self.members[index] {
                member.named = now;
            }
            return index + 1;
        }
        let member = Member {
            node: start(&server),
            server,
            named: now,
        };
        let vacant = self.members.iter().position(Option::is_none);
        let index = vacant.unwrap_or_else(|| {
            self.members.push(None);
            self.members.len() - 1
        });
        self.members[index] = Some(member);
        index + 1
    }
}

impl<L: Lane> Map<Node<L>> {
    /// Whether each slot has a node that is connected.
    pub(crate) fn is_whole(&self) -> bool {
        let up: Vec<_> = self
            .members
            .iter()
            .map(|member| {
                member
                    .as_ref()
                    .is_some_and(|member| member.node.client().is_ok())
            })
            .collect();
        self.slots
            .iter()
            .all(|&number| number > 0 && up[number - 1])
    }
}

// === impl Map ===

impl<N> Default for Map<N> {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            slots: vec![0; SLOTS].into(),
            replicas: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: &str) -> Server {
        Server::new(host, 6379)
    }

    fn start(server: &Server) -> Arc<String> {
        Arc::new(server.host.to_string())
    }

    fn layout(ranges: &[(usize, usize, &str)]) -> Layout {
        Layout {
            ranges: ranges
                .iter()
                .map(|&(first, last, host)| (first, last, server(host)))
                .collect(),
            replicas: vec![server("r")],
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slots_lead_to_the_nodes_of_the_layout_and_of_later_redirections() {
        let mut map = Map::<String>::default();
        assert_eq!(map.number(0), None);
        let halves = [(0, 8_191, "a"), (8_192, 16_383, "b")];
        map.apply(layout(&halves), Instant::now(), start);
        assert_eq!(map.node(8_191).as_deref().map(String::as_str), Some("a"));
        assert_eq!(map.node(8_192).as_deref().map(String::as_str), Some("b"));
        assert_eq!((map.number(0), map.number(16_383)), (Some(1), Some(2)));
        map.moved(7, server("c"), Instant::now(), start);
        assert_eq!((map.number(7), map.number(8)), (Some(3), Some(1)));
        assert_eq!(map.heard_of(&[server("s")]).len(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_nobody_names_leaves_after_a_while_and_its_number_is_free_then() {
        let mut map = Map::<String>::default();
        map.apply(layout(&[(0, 16_383, "a")]), Instant::now(), start);
        let gone = map.apply(layout(&[(0, 16_383, "b")]), Instant::now(), start);
        assert_eq!((gone.len(), map.number(0)), (0, Some(2)));
        tokio::time::advance(FAREWELL + Duration::from_secs(1)).await;
        let gone = map.apply(layout(&[(0, 16_383, "b")]), Instant::now(), start);
        assert_eq!(gone, [Arc::new("a".to_owned())]);
        map.known(server("c"), Instant::now(), start);
        assert_eq!(map.nodes().len(), 2);
        map.moved(0, server("c"), Instant::now(), start);
        assert_eq!(map.number(0), Some(1));
    }
}
