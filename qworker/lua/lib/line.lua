-- What may run by its virtual time: a heap of {tag, name}; the name of messages without a group is ''.
local function new_line()
  local heap, size = {}, 0
  local function less(a, b) return heap[a].tag < heap[b].tag or heap[a].tag == heap[b].tag and heap[a].name < heap[b].name end
  local function sink(at)
    while true do
      local smallest = at
      for child = 2 * at, 2 * at + 1 do
        if child <= size and less(child, smallest) then smallest = child end
      end
      if smallest == at then return end
      heap[at], heap[smallest] = heap[smallest], heap[at]
      at = smallest
    end
  end
  return {
    first = function() return heap[1] end,
    moved = function() sink(1) end,
    leave = function()
      local last = heap[size]
      heap[size] = nil -- it may be the first
      size = size - 1
      if size > 0 then heap[1] = last end
      if size > 0 then sink(1) end
    end,
    add = function(tag, name)
      size = size + 1
      heap[size] = { tag = tag, name = name }
      local at = size
      while at > 1 and less(at, math.floor(at / 2)) do
        local above = math.floor(at / 2)
        heap[at], heap[above] = heap[above], heap[at]
        at = above
      end
    end,
  }
end
