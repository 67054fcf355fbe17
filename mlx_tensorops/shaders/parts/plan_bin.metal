// The bin of an id: its expert, or one more for ids that name none; negative ones are large as unsigned numbers.
inline uint bin_of(Id id, int experts) {
  return min(uint(id), uint(experts));
}
